"""Losses: values against plain formulas, weights, labels out of range."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hybridrec.train.losses import LOSSES, Divisor, Loss, make_loss, reduce, weight_of
from hybridrec.types import Batch, IdBlock


def batch_of(label, weight=None) -> Batch:
    label = torch.as_tensor(label, dtype=torch.float32)
    ids = IdBlock.from_lists({"user": list(range(len(label)))})
    names = ("click", "like")[: 1 if label.dim() == 1 else label.shape[1]]
    weight = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)
    return Batch(ids, torch.zeros(len(label), 0), label, weight, label_names=names)


def test_bce_is_that_of_the_formula_also_far_out():
    logits = torch.tensor([0.0, 2.0, -3.0, 60.0])
    values = LOSSES["bce"](logits, batch_of([0, 1, 1, 0.25]))
    wanted = [-y * math.log(1 / (1 + math.exp(-x))) for x, y in ((2.0, 1), (-3.0, 1))]
    assert values[0] == pytest.approx(math.log(2))
    assert values[1:3].tolist() == pytest.approx(wanted)
    assert values[3] == pytest.approx(60 * 0.75)


def test_mse_and_softmax_are_those_of_the_formulas():
    assert LOSSES["mse"](torch.tensor([1.0, 3.0]), batch_of([0, 5])).tolist() == [1.0, 4.0]
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    values = LOSSES["softmax"](logits, batch_of([2, 0]))
    assert values.tolist() == pytest.approx([-math.log(math.exp(3) / sum(map(math.exp, (1, 2, 3)))), math.log(3)])


def test_in_batch_softmax_finds_the_own_item_of_clicks_and_nothing_for_the_others():
    loss, batch = LOSSES["in_batch_softmax"], batch_of([1, 0, 1])
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    values = loss(logits, batch)
    assert values[2] == pytest.approx(float(-logits[2].log_softmax(0)[2]))
    weights, total = loss.weights(batch), weight_of(loss, batch)
    assert weights is not None
    assert (weights.tolist(), total) == ([1, 0, 1], 2)
    assert reduce(values, weights, Divisor.of(total, total)) == pytest.approx(float(values[[0, 2]].mean()))
    assert torch.equal(loss(logits[:, 0], batch), LOSSES["bce"](logits[:, 0], batch))  # as evaluation calls it


def test_weights_make_the_weighted_mean_and_a_weight_of_zero_leaves_a_row_out():
    values = torch.tensor([1.0, 2.0, 100.0])
    batch = batch_of([0, 0, 0], weight=[3, 1, 0])
    weights, total = LOSSES["bce"].weights(batch), weight_of(LOSSES["bce"], batch)
    assert reduce(values, weights, Divisor.of(total, total)) == pytest.approx(5 / 4)
    assert reduce(values, None, Divisor.of(3.0, 3.0)) == pytest.approx(103 / 3)


def test_nothing_to_weigh_is_a_loss_of_zero_with_a_gradient():
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    nothing = reduce(values, torch.zeros(2), Divisor.of(0.0, 0.0))
    nothing.backward()
    assert nothing == 0
    assert values.grad is not None
    assert values.grad.tolist() == [0, 0]


def test_labels_are_averaged_or_weighted():
    values = torch.tensor([[1.0, 3.0], [3.0, 5.0]])
    assert reduce(values, None, Divisor.of(2.0, 2.0)) == 3.0
    assert reduce(values, None, Divisor.of(2.0, 2.0), torch.tensor([1.0, 0.0])) == 2.0


@pytest.mark.parametrize(
    ("loss", "label", "message"),
    [
        ("bce", [0, 1, 2], r"label 'click' is 2 in row 2 of the batch, but loss 'bce' takes 0 to 1; mend"),
        ("bce", [0, -1, 1], r"is -1 in row 1"),
        ("bce", [0, math.nan, 1], r"is nan in row 1"),
        ("bce", [[0, 1], [0, 7]], r"label 'like' is 7 in row 1"),
        ("mse", [0, math.inf], r"is inf in row 1 of the batch, but loss 'mse' takes finite numbers"),
        ("softmax", [-1, 0], r"is -1 .* takes 0 and more"),
    ],
)
def test_a_label_outside_its_range_is_named(loss, label, message):
    with pytest.raises(ValueError, match=message):
        LOSSES[loss].check_labels(batch_of(label))


def test_labels_at_the_ends_of_the_range_pass():
    LOSSES["bce"].check_labels(batch_of([0, 0.5, 1]))
    LOSSES["bce"].check_labels(batch_of([]))
    LOSSES["mse"].check_labels(batch_of([-1e30, 5]))
    LOSSES["bce"].check_labels(replace(batch_of([0]), label=None, label_names=()))


@pytest.mark.parametrize(("label", "worst"), [([0, 3], "3"), ([0.5, 1], "0.5")])
def test_a_class_that_the_model_does_not_know_is_named(label, worst):
    with pytest.raises(ValueError, match=f"label {worst} is no class of a model with 3 outputs"):
        LOSSES["softmax"](torch.zeros(2, 3), batch_of(label))


def test_outputs_of_another_shape_than_the_labels_are_refused():
    with pytest.raises(ValueError, match=r"outputs \[2, 1\] for labels \[2\]"):
        LOSSES["bce"](torch.zeros(2, 1), batch_of([0, 1]))
    with pytest.raises(ValueError, match=r"takes outputs \[B, B\], got \[2, 3\]"):
        LOSSES["in_batch_softmax"](torch.zeros(2, 3), batch_of([0, 1]))
    with pytest.raises(ValueError, match="no label; name it"):
        LOSSES["bce"](torch.zeros(1), replace(batch_of([0]), label=None, label_names=()))


def test_losses_come_by_name_as_functions_and_as_values():
    def focal(outputs, batch):
        return outputs

    assert make_loss("bce") is LOSSES["bce"]
    assert make_loss(focal).name == "focal"
    assert make_loss(kept := Loss("mine", focal)) is kept
    with pytest.raises(
        ValueError, match=r"loss is 'bse'; valid are bce, mse, softmax, in_batch_softmax, or a function"
    ):
        make_loss("bse")
    with pytest.raises(TypeError, match="loss is 3"):
        make_loss(3)  # type: ignore[arg-type]
