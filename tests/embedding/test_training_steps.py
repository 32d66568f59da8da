"""Row optimizers over several steps: accumulation, schedules, scaling, clipping, tables that rest, bad gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler

from hybridrec.embedding import Constant, EmbeddingCollection, Table, Uniform
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad, clip_grad_norm_
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import blocks, factors, loss_of, random_block, table_lists
from tests.embedding.oracle import PlainCollection

GradScaler = torch.amp.GradScaler  # pyright: ignore[reportPrivateImportUsage]  (its documented home)
NAN, INF = math.nan, math.inf
KINDS = [SGD, Adagrad, RowWiseAdagrad, Adam, FTRL]


def single(dim: int = 3, rows: int = 9, **options: Any) -> EmbeddingCollection:
    return EmbeddingCollection([Table("t", dim, rows=rows, **({"init": Uniform(1.0)} | options))])


def state_of(emb: EmbeddingCollection, name: str = "t") -> list[Tensor]:
    """Rows and optimizer state."""
    data = emb[name].export()
    return [data.rows.clone(), *(part.clone() for part in data.state.values())]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


# -- several backward calls, several optimizers ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "none"])
def test_accumulated_gradients_are_those_of_one_large_batch_bit_for_bit(kind, combiner):
    parts = [random_block({"t": 9}, 7, seed, longest=5) for seed in range(4)]
    grads = [torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    whole = Ragged.from_lists([row for part in parts for row in part["t"].to_list()])
    results = []
    for batches in (parts, [IdBlock.from_ragged({"t": whole})]):
        emb = single(5, combiner=combiner)
        rows = kind(emb, lr=0.3)
        for number, block in enumerate(batches):
            out = emb(block)["t"]
            grad = grads[number] if len(batches) > 1 else torch.cat(grads)
            spread = grad.repeat_interleave(block.lengths("t"), 0)
            (out.flat * spread if isinstance(out, Ragged) else out * grad).sum().backward()
        rows.step()
        assert rows.steps_of("t") == 1
        results.append(state_of(emb))
    assert_equal(*results)


@given(data=st.data())
def test_optimizers_of_different_tables_step_when_they_like(data):
    tables = data.draw(table_lists(most=3, dims=(1, 5)))
    emb = EmbeddingCollection(tables)
    names = list(emb.tables)
    split = data.draw(st.integers(0, len(names)))
    groups = [group for group in (names[:split], names[split:]) if group]
    steppers = [Adagrad(emb, lr=0.5, eps=0.05, tables=group) for group in groups]
    plain = PlainCollection(emb)
    for turn in range(6):
        what = data.draw(st.sampled_from(["backward", "step", "zero"]))
        one = data.draw(st.sampled_from(steppers))
        if what == "backward":
            block = data.draw(blocks(tables))
            for out in (emb(block), plain(block)):
                loss_of(out, turn).backward()
        elif what == "step":
            plain.step(one)
            one.step()
        else:
            plain.discard(one.tables)
            one.zero_grad()
        plain.assert_equal()


def test_a_frozen_table_stays_as_it_is_and_lets_gradients_pass():
    tables = [Table("a", 3, rows=5, trainable=False), Table("b", 3, rows=5)]
    emb = EmbeddingCollection(tables)
    rows, before = SGD(emb, lr=1.0), [emb[name].weight.clone() for name in "ab"]
    weights = torch.ones(4, requires_grad=True)
    block = IdBlock.from_ragged(
        {"a": torch.tensor([1, 2]), "b": torch.tensor([1, 2])}, {"a": weights[:2], "b": weights[2:]}
    )
    emb(block).flat.sum().backward()
    rows.step()
    assert rows.tables == ("b",)
    assert torch.equal(emb["a"].weight, before[0])
    assert (emb["b"].weight != before[1]).any(1).tolist() == [False, True, True, False, False]
    torch.testing.assert_close(weights.grad, torch.cat([part[1:3].sum(1) for part in before]))


def test_zero_grad_forgets_gradients_and_their_factors():
    emb = single()
    rows, before = Adam(emb, lr=1.0), state_of(emb)
    emb({"t": torch.tensor([1, 2])}).flat.sum().backward()
    clip_grad_norm_([], rows, 1e-3)
    rows.zero_grad()
    rows.step()
    assert_equal(state_of(emb), before)
    assert (emb.group.pending("t"), rows.steps_of("t"), rows.grad_norm()) == (0, 0, 0.0)


def test_a_gradient_without_an_optimizer_is_refused_and_not_lost():
    emb = single()
    rows = SGD(emb, lr=1.0)
    loss = emb({"t": torch.tensor([1])}).flat.sum()
    rows.release()
    with pytest.raises(RuntimeError, match="a gradient has come for table 't', but no row optimizer updates it"):
        loss.backward()


def test_a_view_of_optimizer_state_outlives_its_optimizer():
    emb = single(rows=50_000)
    rows = Adagrad(emb, lr=1.0, initial_accumulator_value=2.0)
    view = emb["t"].state("sum")
    emb({"t": torch.tensor([1])}).flat.sum().backward()
    rows.step()
    rows.release()
    again = Adagrad(emb, lr=1.0, initial_accumulator_value=5.0)
    assert view[:3, 0].tolist() == [2, 3, 2]
    assert emb["t"].state("sum")[:3, 0].tolist() == [5, 5, 5]
    again.release()


# -- beside torch ----------------------------------------------------------------------------------------------


def twin(emb: EmbeddingCollection, **options: Any) -> tuple[nn.EmbeddingBag, torch.optim.Optimizer]:
    bag = nn.EmbeddingBag.from_pretrained(emb["t"].weight.clone(), freeze=False, mode="sum")
    return bag, torch.optim.SGD(bag.parameters(), **options)


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 4)], [3]
    ),
    "one cycle, of momentum too": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=8),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_of_torch_drive_the_rows_as_they_drive_a_parameter(schedule):
    emb, options = single(), {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
    bag, dense = twin(emb, **options)
    rows = SGD(emb, **options)
    schedules = [SCHEDULES[schedule](optimizer) for optimizer in (rows, dense)]
    for turn in range(8):  # every row each time, so that none rests
        ids, grad = torch.arange(18).view(9, 2) % 9, factors((9, 3), turn)
        dense.zero_grad()
        for out in (emb({"t": ids}).flat, bag(ids)):
            (out * grad).sum().backward()
        for part in (rows, dense, *schedules):
            part.step()
        torch.testing.assert_close(emb["t"].weight, bag.weight.detach())


@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_steps_and_skips_rows_as_it_does_a_parameter(unscale):
    emb = single()
    bag, dense = twin(emb, lr=0.1)
    rows = SGD(emb, lr=0.1)
    scalers = [GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2)]
    for turn in range(8):
        ids, grad = torch.randint(0, 9, (6, 2), generator=torch.Generator().manual_seed(turn)), factors((6, 3), turn)
        grad[turn % 6, 0] = {2: INF, 5: NAN}.get(turn, 1.0)
        dense.zero_grad()
        for scaler, optimizer, out in zip(scalers, (rows, dense), (emb({"t": ids}).flat, bag(ids)), strict=True):
            scaler.scale((out * grad).sum()).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        torch.testing.assert_close(emb["t"].weight, bag.weight.detach())
    assert rows.steps_of("t") == 6


@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_rows_and_parameters_are_clipped_together_as_torch_does(max_norm):
    emb, layers = single(), [nn.Linear(3, 2), nn.Linear(3, 2)]
    layers[1].load_state_dict(layers[0].state_dict())
    bag, dense = twin(emb, lr=0.1)
    rows = SGD(emb, lr=0.1)
    for seed in range(2):
        ids, grad = torch.randint(0, 9, (6, 2), generator=torch.Generator().manual_seed(seed)), factors((6, 2), seed)
        for out, layer in ((emb({"t": ids}).flat, layers[0]), (bag(ids), layers[1])):
            (layer(out) * grad).sum().backward()
    norm = clip_grad_norm_(layers[0].parameters(), rows, max_norm)
    expected = nn.utils.clip_grad_norm_([*layers[1].parameters(), bag.weight], max_norm)
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)
    rows.step()
    dense.step()
    torch.testing.assert_close(emb["t"].weight, bag.weight.detach())


@pytest.mark.parametrize("size", [{"rows": 9}, {"capacity": 9}])
def test_rows_are_float32_whatever_the_default_type_of_torch_is(size):
    results = []
    for kind in (torch.float32, torch.float64):
        torch.set_default_dtype(kind)
        try:
            emb = EmbeddingCollection([Table("t", 3, features=["a", "b"], combiner={"a": "max", "b": "none"}, **size)])
            rows = Adagrad(emb, lr=0.5)
            ids = torch.tensor([1, 2, 1])
            for weights in (None, {"a": torch.tensor([1.0, 2.0, 0.5], dtype=torch.float32)}):
                out = emb(IdBlock.from_ragged({"a": ids, "b": ids}, weights))
                assert out.flat.dtype == out["b"].flat.dtype == torch.float32
                (out.flat.sum() + out["b"].flat.sum()).backward()
                rows.step()
            saved = rows.state_dict()["state"]["t"]["sum"]
            results.append([emb.lookup("t", [1, 2, 2]), *state_of(emb), saved])
        finally:
            torch.set_default_dtype(torch.float32)
    assert_equal(*results)


# -- gradients that are not finite -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 5, 16, 33])
def test_a_row_with_a_bad_gradient_is_left_out_and_counted_while_others_move(bad, kind, dim):
    emb, good = single(dim), single(dim)
    rows, others = kind(emb, lr=0.5), kind(good, lr=0.5)
    for model, ids in ((emb, [1, 2, 3, 2]), (good, [1, 3])):
        model({"t": torch.tensor(ids)}).flat.sum().backward()
    rows.step()
    others.step()
    before = state_of(emb)
    grad = torch.ones(4, dim)
    grad[3, dim - 1] = bad
    (emb({"t": torch.tensor([1, 2, 3, 2])}).flat * grad).sum().backward()
    good({"t": torch.tensor([1, 3])}).flat.sum().backward()
    rows.step()
    others.step()
    for found, kept, moved in zip(state_of(emb), before, state_of(good), strict=True):
        assert torch.equal(found[2], kept[2])
        assert torch.equal(found[[1, 3]], moved[[1, 3]])
    assert emb["t"].counters()["nan_rows"] == 1


def test_a_sum_that_overflows_is_a_bad_gradient():
    emb = single(init=Constant(1.0))
    for nan in ("skip", "raise"):
        rows = SGD(emb, lr=1.0, nan=nan)
        (emb({"t": torch.tensor([0, 0, 1])}).flat * 3e38).sum().backward()
        if nan == "skip":
            rows.step()
        else:
            with pytest.raises(FloatingPointError, match="table 't'"):
                rows.step()
        assert emb["t"].weight[0].tolist() == [1, 1, 1]
        rows.release()
    assert emb["t"].counters()["nan_rows"] == 1


def test_raising_names_the_table_and_changes_nothing_anywhere():
    emb = EmbeddingCollection([Table("a", 2, rows=5), Table("b", 2, rows=5), Table("c", 2, capacity=5)])
    other = EmbeddingCollection([Table("d", 2, rows=5)])
    rows = Adam(nn.ModuleList([other, emb]), lr=1.0, nan="raise")
    ids = {name: torch.tensor([1, 2]) for name in "abcd"}
    out = emb(ids)
    before = [state_of(emb, name) for name in "abc"] + [state_of(other, "d")]
    (out["a"].sum() + (out["b"] * torch.tensor([[1.0], [NAN]])).sum() + out["c"].sum()).backward()
    other(ids).flat.sum().backward()
    with pytest.raises(FloatingPointError, match="table 'b' has gradients that are not finite"):
        rows.step()
    after = [state_of(emb, name) for name in "abc"] + [state_of(other, "d")]
    for pair in zip(after, before, strict=True):
        assert_equal(*pair)
    assert [rows.steps_of(name) for name in "abcd"] == [0, 0, 0, 0]
    assert [emb.group.pending(name) for name in "abc"] == [1, 1, 1]
    rows.zero_grad()


def test_a_bad_gradient_that_reaches_no_row_is_no_reason_to_raise():
    """That of an empty bag, and of an id without a row."""
    emb = single(rows=3, init=Constant(1.0), out_of_range="zero")
    rows = SGD(emb, lr=1.0, nan="raise")
    out = emb({"t": Ragged.from_lists([[], [7], [1]])})
    (out.flat * torch.tensor([[NAN], [INF], [1.0]])).sum().backward()
    rows.step()
    assert emb["t"].weight[:, 0].tolist() == [1, 0, 1]
    assert emb["t"].counters()["nan_rows"] == 0


@pytest.mark.parametrize("bad", [NAN, INF])
def test_the_norm_of_bad_gradients_is_not_finite_and_can_be_an_error(bad):
    emb = single()
    rows = SGD(emb, lr=1.0)
    (emb({"t": torch.tensor([0, 1])}).flat * torch.tensor([[1.0], [bad]])).sum().backward()
    assert not math.isfinite(rows.grad_norm())
    with pytest.raises(RuntimeError, match="the norm of the gradients is"):
        clip_grad_norm_([], rows, 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_survive_a_clipping_whose_norm_is_nan(kind):
    """torch makes every gradient NaN then: the rows are left out and counted."""
    emb, parameter = single(), nn.Parameter(torch.ones(1))
    rows, before = kind(emb, lr=1.0), state_of(emb)
    parameter.grad = torch.tensor([NAN])
    emb({"t": torch.tensor([0, 1, 1])}).flat.sum().backward()
    clip_grad_norm_([parameter], rows, 1.0)
    rows.step()
    assert_equal(state_of(emb), before)
    assert emb["t"].counters()["nan_rows"] == 2


def test_gradients_that_overflow_when_they_are_scaled_are_bad():
    emb = single(init=Constant(1.0))
    rows = SGD(emb, lr=1.0)
    (emb({"t": torch.tensor([0, 1])}).flat * torch.tensor([[1e30], [1.0]])).sum().backward()
    rows.scale_grads(2.0**66)
    rows.step()
    assert emb["t"].weight[0].tolist() == [1, 1, 1]
    assert emb["t"].weight[1].tolist() == [-(2.0**66)] * 3
    assert emb["t"].counters()["nan_rows"] == 1


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_weight_leaves_its_bound_and_no_row_gradient_its_norm(kind):
    emb, twin = single(17), single(17)
    rows = kind(emb, lr=5.0, weight_bound=0.75, clip_row_norm=0.5)
    plain = kind(twin, lr=5.0, weight_bound=0.75)
    for seed in range(3):
        ids, grad = torch.randint(0, 9, (6,), generator=torch.Generator().manual_seed(seed)), factors((6, 17), seed)
        (emb({"t": ids}).flat * grad).sum().backward()
        sums = torch.zeros(9, 17).index_add(0, ids, grad)
        sums *= (0.5 / sums.norm(dim=1, keepdim=True)).nan_to_num(0).clamp(max=1)
        (twin({"t": ids.unique()}).flat * sums[ids.unique()]).sum().backward()
        rows.step()
        plain.step()
        assert emb["t"].weight[ids].abs().max() <= 0.75
        torch.testing.assert_close(emb["t"].weight, twin["t"].weight, rtol=1e-4, atol=1e-5)
