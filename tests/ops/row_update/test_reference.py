from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hybridrec.ops.row_update.reference import FORMULAS, sum_duplicates, update_rows
from hybridrec.optim.rule import Kind, RowRule, RowStep, StateColumn

ROWS, DIM, STEPS = 6, 4, 5
STATES: dict[Kind, tuple[StateColumn, ...]] = {
    "sgd": (),
    "momentum": (StateColumn("momentum_buffer"),),
    "nesterov": (StateColumn("momentum_buffer"),),
    "adagrad": (StateColumn("sum"),),
    "rowwise_adagrad": (StateColumn("sum", per_row=True),),
    "adam": (StateColumn("exp_avg"), StateColumn("exp_avg_sq")),
    "ftrl": (StateColumn("z"), StateColumn("n", fill=0.1)),
}
NUMBERS: dict[str, Any] = {"momentum": 0.9, "eps": 1e-8, "beta1": 0.9, "beta2": 0.999}


def made(kind: Kind, **numbers: Any) -> RowStep:
    return RowStep(rule=RowRule(kind, STATES[kind]), **({"lr": 0.1, "step": 1} | NUMBERS | numbers))


def fresh(kind: Kind, rows: int) -> list[Tensor]:
    """The state of rows that were never updated."""
    return [torch.full((rows,) if c.per_row else (rows, DIM), c.fill) for c in STATES[kind]]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batches(touched: bool) -> list[tuple[Tensor, Tensor]]:
    """Slots and gradients of several steps, with duplicates; every row touched in each step, or some in some."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for step in range(STEPS):
        slots = torch.randint(0, ROWS - 1, (5,), generator=generator)
        slots = torch.cat([slots, torch.arange(ROWS)]) if touched else slots
        found.append((slots, random(len(slots), DIM, seed=step)))
    return found


def ours(steps: list[RowStep], data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """All rows after these steps, each on its own slots."""
    kind = steps[0].rule.kind
    weight, states = random(ROWS, DIM, seed=99), fresh(kind, ROWS)
    for step, (slots, grads) in zip(steps, data, strict=True):
        unique, sums = sum_duplicates(slots, grads)
        rows, parts = update_rows(step, weight[unique], [s[unique] for s in states], sums)
        for target, part in zip([weight, *states], [rows, *parts], strict=True):
            target[unique] = part
    return weight


def torchs(
    make: type[torch.optim.Optimizer], data: list[tuple[Tensor, Tensor]], sparse: bool, **options: Any
) -> Tensor:
    """The same with an optimizer of PyTorch."""
    weight = torch.nn.Parameter(random(ROWS, DIM, seed=99))
    optimizer = make([weight], **options)
    for slots, grads in data:
        with torch.sparse.check_sparse_tensor_invariants():
            grad = torch.sparse_coo_tensor(slots[None], grads, (ROWS, DIM))
            weight.grad = grad if sparse else grad.to_dense()
            optimizer.step()
    return weight.detach()


# -- sums ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-1, 5), max_size=40))
def test_duplicates_add_up_in_order_to_the_last_bit(places):
    slots, grads = torch.tensor(places, dtype=torch.int64), random(len(places), DIM) * 1e3
    unique, sums = sum_duplicates(slots, grads)
    assert unique.tolist() == sorted({slot for slot in places if slot >= 0})
    for slot, total in zip(unique.tolist(), sums, strict=True):
        expected = torch.zeros(DIM)
        for place in range(len(places)):
            if places[place] == slot:
                expected = expected + grads[place]
        assert torch.equal(total, expected)


def test_a_long_run_of_one_slot_adds_up_in_order_to_the_last_bit():
    grads = random(5000, 2)
    _, sums = sum_duplicates(torch.zeros(5000, dtype=torch.int64), grads)
    expected = torch.zeros(2)
    for g in grads:
        expected = expected + g
    assert torch.equal(sums[0], expected)


def test_missing_slots_take_no_gradient():
    unique, sums = sum_duplicates(torch.tensor([-1, 3, -1]), torch.tensor([[math.nan], [2.0], [5.0]]))
    assert (unique.tolist(), sums.tolist()) == ([3], [[2.0]])


# -- against PyTorch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("sgd", {}),
        ("sgd", {"weight_decay": 0.1}),
        ("momentum", {"momentum": 0.9}),
        ("momentum", {"momentum": 0.9, "weight_decay": 0.1}),
        ("nesterov", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ],
)
def test_sgd_is_that_of_torch_where_every_row_is_touched(kind, options):
    data = batches(touched=True)
    numbers = {name: value for name, value in options.items() if name != "nesterov"}
    found = ours([made(kind, step=t + 1, **numbers) for t in range(STEPS)], data)
    torch.testing.assert_close(found, torchs(torch.optim.SGD, data, False, lr=0.1, **options))


def test_plain_sgd_is_that_of_torch_on_sparse_gradients():
    data = batches(touched=False)
    found = ours([made("sgd", step=t + 1) for t in range(STEPS)], data)
    torch.testing.assert_close(found, torchs(torch.optim.SGD, data, True, lr=0.1))


@pytest.mark.parametrize("lr_decay", [0.0, 0.5])
def test_adagrad_is_that_of_torch_on_sparse_gradients(lr_decay):
    data = batches(touched=False)
    steps = [made("adagrad", step=t + 1, lr=0.1 / (1 + t * lr_decay), eps=1e-10) for t in range(STEPS)]
    torch.testing.assert_close(ours(steps, data), torchs(torch.optim.Adagrad, data, True, lr=0.1, lr_decay=lr_decay))


def test_adagrad_with_weight_decay_is_that_of_torch_where_every_row_is_touched():
    data = batches(touched=True)
    steps = [made("adagrad", step=t + 1, eps=1e-10, weight_decay=0.1) for t in range(STEPS)]
    torch.testing.assert_close(ours(steps, data), torchs(torch.optim.Adagrad, data, False, lr=0.1, weight_decay=0.1))


def test_adam_is_sparse_adam_of_torch():
    data = batches(touched=False)
    sizes = [0.1 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t) for t in range(1, STEPS + 1)]
    steps = [made("adam", step=t + 1, lr=size) for t, size in enumerate(sizes)]
    torch.testing.assert_close(ours(steps, data), torchs(torch.optim.SparseAdam, data, True, lr=0.1))


# -- the others ------------------------------------------------------------------------------------------------


def ftrl_by_hand(w: float, gradients: list[float], lr: float, l1: float, l2: float, beta: float) -> list[float]:
    """FTRL-Proximal as McMahan et al. (2013) give it: per coordinate, lazily solved, in double."""
    z, n, out = 0.0, 0.1, []
    for g in gradients:
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / lr
        z, n = z + g - sigma * w, n + g * g
        scale = (beta + math.sqrt(n)) / lr + l2
        w = 0.0 if abs(z) <= l1 else (math.copysign(l1, z) - z) / scale
        out.append(w)
    return out


@pytest.mark.parametrize("options", [{}, {"l1": 0.3}, {"l2": 0.5}, {"beta": 1.0}, {"l1": 0.8, "l2": 0.1, "beta": 0.5}])
def test_ftrl_follows_the_formula_of_its_paper(options):
    numbers = {"l1": 0.0, "l2": 0.0, "beta": 0.0} | options
    rows, grads = random(3, DIM), [random(3, DIM, seed=t + 1) for t in range(STEPS)]
    found, states = rows, fresh("ftrl", 3)
    for t, g in enumerate(grads):
        found, states = update_rows(made("ftrl", step=t + 1, **numbers), found, states, g)
        for row in range(3):
            for column in range(DIM):
                past = [float(grad[row, column]) for grad in grads[: t + 1]]
                expected = ftrl_by_hand(float(rows[row, column]), past, lr=0.1, **numbers)[-1]
                assert float(found[row, column]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_strong_l1_sets_the_weights_of_ftrl_to_zero():
    rows, _ = update_rows(made("ftrl", l1=100.0), random(3, DIM), fresh("ftrl", 3), random(3, DIM, seed=1))
    assert rows.tolist() == [[0.0] * DIM] * 3


def test_rowwise_adagrad_scales_a_row_by_one_number():
    rows, grads = torch.zeros(2, 2), torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    new, states = update_rows(made("rowwise_adagrad", eps=0.0), rows, [torch.tensor([0.0, 7.0])], grads)
    assert states[0].tolist() == [5.0, 9.0]
    torch.testing.assert_close(new, -0.1 * grads / torch.tensor([[5.0**0.5], [3.0]]))


def test_rowwise_adagrad_is_adagrad_in_one_dimension():
    rows, grads = random(5, 1), random(5, 1, seed=1)
    one, (per_row,) = update_rows(made("rowwise_adagrad"), rows, [torch.ones(5)], grads)
    other, (full,) = update_rows(made("adagrad"), rows, [torch.ones(5, 1)], grads)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(per_row, full[:, 0])


def test_adagrad_on_a_sum_of_duplicates_is_that_of_the_flat_lookup():
    # distributed_embeddings: a step with Adagrad(0.1) on ids [[0, 1, 0]] equals one on the flattened ids
    slots, grads = torch.tensor([0, 1, 0]), torch.ones(3, 2)
    unique, sums = sum_duplicates(slots, grads)
    rows, _ = update_rows(made("adagrad", eps=0.0), torch.zeros(2, 2), [torch.zeros(2, 2)], sums)
    assert unique.tolist() == [0, 1]
    torch.testing.assert_close(rows, torch.full((2, 2), -0.1))


# -- around every rule -----------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("kind", list(FORMULAS))


@EVERY
def test_nothing_is_changed_in_place(kind):
    inputs = [random(3, DIM), *fresh(kind, 3), random(3, DIM, seed=1)]
    copies = [tensor.clone() for tensor in inputs]
    update_rows(made(kind, clip_row_norm=0.1, weight_bound=0.1, weight_decay=0.1), inputs[0], inputs[1:-1], inputs[-1])
    for tensor, copy in zip(inputs, copies, strict=True):
        assert torch.equal(tensor, copy)


@EVERY
def test_the_scale_multiplies_the_gradient_first(kind):
    rows, grads, states = random(3, DIM), random(3, DIM, seed=1), fresh(kind, 3)
    scaled = update_rows(made(kind, grad_scale=0.25, clip_row_norm=0.3), rows, states, grads)
    plain = update_rows(made(kind, clip_row_norm=0.3), rows, states, grads * 0.25)
    torch.testing.assert_close(scaled, plain, rtol=0, atol=0)


def test_only_rows_longer_than_the_bound_are_clipped():
    grads = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    rows, _ = update_rows(made("sgd", lr=1.0, clip_row_norm=1.0), torch.zeros(3, 2), [], grads)
    torch.testing.assert_close(rows, -torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_weight_decay_is_added_after_clipping():
    rows, _ = update_rows(
        made("sgd", lr=1.0, clip_row_norm=1.0, weight_decay=0.5), torch.ones(1, 1), [], torch.full((1, 1), 9.0)
    )
    assert rows.tolist() == [[1 - (1 + 0.5)]]


@EVERY
def test_no_weight_leaves_the_bound(kind):
    rows, _ = update_rows(made(kind, lr=5.0, weight_bound=0.5), random(8, DIM), fresh(kind, 8), random(8, DIM, seed=1))
    assert rows.abs().max() == 0.5
    assert {-0.5, 0.5} <= set(rows.flatten().tolist())


@EVERY
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_gradient_that_is_not_finite_stays_and_the_others_move(kind, bad):
    rows, grads, states = random(3, DIM), random(3, DIM, seed=1), [s + 1 for s in fresh(kind, 3)]
    grads[1, 2] = bad
    step = made(kind, clip_row_norm=1.0, weight_decay=0.1, weight_bound=0.2)
    new, new_states = update_rows(step, rows, states, grads)
    assert torch.equal(new[1], rows[1])
    alone, alone_states = update_rows(step, rows[::2], [s[::2] for s in states], grads[::2])
    assert torch.equal(new[::2], alone)
    for state, after, part in zip(states, new_states, alone_states, strict=True):
        assert torch.equal(after[1], state[1])
        assert torch.equal(after[::2], part)


def test_a_gradient_that_is_not_finite_raises_where_asked():
    grads = torch.tensor([[1.0], [math.nan], [math.inf]])
    with pytest.raises(FloatingPointError, match="2 of 3 rows have a gradient that is not finite"):
        update_rows(made("sgd", nan="raise"), torch.zeros(3, 1), [], grads)
    update_rows(made("sgd", nan="raise"), torch.zeros(1, 1), [], grads[:1])


@EVERY
def test_double_rows_are_updated_in_double(kind):
    rows, grads = random(3, DIM).double(), random(3, DIM, seed=1).double()
    states = [s.double() for s in fresh(kind, 3)]
    new, new_states = update_rows(made(kind), rows, states, grads)
    assert {t.dtype for t in [new, *new_states]} == {torch.float64}


@EVERY
def test_a_gradient_of_zero_still_touches_the_row(kind):
    rows, zero = random(2, DIM), torch.zeros(2, DIM)
    step = replace(made(kind), weight_decay=0.5)
    new, _ = update_rows(step, rows, fresh(kind, 2), zero)
    assert not torch.equal(new, rows)
