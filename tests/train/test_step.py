"""One step: gradients of the common mean, clipping, precision, and errors that change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import hybridrec as hr
from hybridrec.train import Learner, Loss, grouped, train_step
from hybridrec.train.losses import LOSSES, make_loss
from hybridrec.train.stages import Stages
from hybridrec.types import Batch
from tests.train.clicks import assert_same, clicks, dataset, model_of, weights


def learner_of(ds, **options) -> Learner:
    model = model_of(ds)
    loss = make_loss(options.pop("loss", "bce"))
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    return Learner(model, loss, dense, hr.optim.SGD(model, lr=0.1), **options)


def test_a_step_is_the_plain_loop_of_torch():
    ds = dataset(300)
    learner = learner_of(ds)
    other = model_of(ds)
    dense, rows = torch.optim.SGD(other.parameters(), lr=0.1), hr.optim.SGD(other, lr=0.1)
    for group in grouped(ds, 1):
        result = train_step(learner, group)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(other(group[0]), group[0].label)
        loss.backward()
        dense.step()
        dense.zero_grad()
        rows.step()
        assert result.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    for name, part in weights(learner.model).items():
        assert torch.allclose(part.float(), weights(other)[name].float(), atol=1e-6), name


@pytest.mark.parametrize("weight", [None, "age"])
def test_accumulated_batches_are_one_batch_of_all_their_rows(weight):
    rows = clicks(330)
    rows["age"] = abs(rows["age"])
    whole = hr.data.table(rows, label="click", weight=weight, batch_size=330)
    parts = whole.batch(100)  # 100, 100, 100, 30
    one, many = learner_of(whole), learner_of(whole)
    # RunningNorm sees the dense columns batch by batch, so compare without them
    a, b = next(iter(whole)), list(parts)
    for learner in (one, many):
        learner.model.eval()
        learner.model.embeddings.train()
        learner.model.wide.train()
    first, second = train_step(one, [a]), train_step(many, b)
    assert second.loss == pytest.approx(first.loss, rel=1e-5)
    assert (first.rows, second.rows) == (330, 330)
    for name, part in weights(one.model).items():
        assert torch.allclose(part.float(), weights(many.model)[name].float(), atol=1e-5), name


def test_a_scalar_loss_counts_by_the_rows_of_its_batch():
    ds = dataset(150)
    mean = Loss("own", lambda out, batch: LOSSES["bce"](out, batch).mean())
    one, other = learner_of(ds, loss=mean), learner_of(ds)
    group = list(ds)
    assert train_step(one, group).loss == pytest.approx(train_step(other, group).loss, rel=1e-6)


def test_clipping_bounds_layers_and_rows_together():
    ds = dataset(100)
    moved = []
    for bound in (None, 1e-3):
        learner = learner_of(ds, clip_norm=bound)
        learner.model(next(iter(ds)))  # the rows come
        learner.rows.zero_grad()
        before = trained(learner.model)
        train_step(learner, list(ds))
        moved.append(float((trained(learner.model) - before).norm()))
    assert moved[0] > 0.01
    assert moved[1] == pytest.approx(0.1 * 1e-3, rel=1e-2)  # the learning rate times the bound


def trained(model: torch.nn.Module) -> torch.Tensor:
    """Parameters and rows as one vector."""
    rows = [part for name, part in weights(model).items() if name.startswith("rows of")]
    return torch.cat([part.detach().flatten() for part in (*model.parameters(), *rows)])


def test_bf16_computes_the_layers_in_bfloat16_and_keeps_weights_in_float32():
    ds = dataset(100)
    learner = learner_of(ds, bf16=True)
    seen = []
    learner.model.net.deep.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    result = train_step(learner, list(ds))
    exact = train_step(learner_of(ds), list(ds))
    assert seen == [torch.bfloat16]
    assert result.outputs[0].dtype == torch.float32
    assert result.loss == pytest.approx(exact.loss, rel=0.02)
    assert result.loss != exact.loss
    assert {part.dtype for part in learner.model.parameters()} == {torch.float32}


def spoilt(batch: Batch, value: float) -> Batch:
    dense = batch.dense.clone()
    dense[3, 0] = value
    return replace(batch, dense=dense, arena=None)


@pytest.mark.parametrize("at", [0, 1])
def test_a_loss_that_is_not_finite_raises_and_changes_nothing(at):
    ds = dataset(200)
    learner = learner_of(ds, loss=lambda out, batch: LOSSES["bce"](out, batch) * (float("nan") if batch is bad else 1))
    group = list(ds)
    bad = group[at]
    train_step(learner, [group[1 - at]])
    learner.model.eval()  # RunningNorm keeps what it saw before the loss was known
    before = weights(learner.model)
    with pytest.raises(
        FloatingPointError, match=r"the loss is nan; the outputs of the model are finite: look at the loss"
    ):
        train_step(learner, group)
    after = weights(learner.model)
    assert_same(before, after)
    train_step(learner, [group[1 - at]])  # no gradient is left over that is not finite
    assert all(bool(part.isfinite().all()) for part in weights(learner.model).values())


def test_an_error_in_a_later_batch_leaves_no_gradient_of_the_first():
    ds = dataset(200)
    learner = learner_of(ds)
    good, other = list(ds)
    bad = replace(other, label=other.label + 5, arena=None)
    with pytest.raises(ValueError, match="label 'click' is"):
        train_step(learner, [good, bad])
    learner.model.eval()
    before = trained(learner.model)
    learner.dense.step()
    learner.rows.step()
    assert torch.equal(before, trained(learner.model))


@pytest.mark.parametrize(
    ("value", "told"),
    [(math.nan, r"dense columns age hold NaN: write it as null"), (math.inf, r"age hold infinite values: .*Clip\(")],
)
def test_dense_columns_that_are_not_finite_are_named_with_what_helps(value, told):
    class Linear(torch.nn.Linear):
        def forward(self, batch):
            return super().forward(batch.dense)[:, 0]

    ds, model = dataset(100), Linear(1, 1)
    learner = Learner(model, LOSSES["bce"], torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(FloatingPointError, match=told):
        train_step(learner, [spoilt(next(iter(ds)), value)])


class Noting(torch.optim.SGD):
    """Notes when its gradients are dropped, and keeps them."""

    dropped = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.dropped += 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, Noting])
def test_after_a_step_layers_have_the_gradients_that_their_optimizer_leaves(kind):
    ds = dataset()
    model = model_of(ds)
    learner = Learner(model, LOSSES["bce"], kind(model.parameters(), lr=0.1), hr.optim.SGD(model, lr=0.1))
    train_step(learner, [next(iter(ds))])
    assert getattr(learner.dense, "dropped", 1) == 1
    assert {part.grad is None for part in model.parameters()} == {kind is torch.optim.SGD}


def test_groups_hold_so_many_batches_and_the_last_the_rest():
    ds = dataset(700)
    assert [len(group) for group in grouped(ds, 3)] == [3, 3, 1]
    assert [len(group) for group in grouped([], 3)] == []


def test_time_is_counted_by_stage_without_a_gap():
    ds = dataset(500)
    learner = learner_of(ds)
    for group in grouped(ds, 1, learner.stages):
        train_step(learner, group)
    seconds = learner.stages.take()
    assert all(seconds[name] > 0 for name in ("data", "forward", "backward", "step"))
    assert set(Stages().take()) == set(seconds)
