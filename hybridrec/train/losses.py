"""Losses: from a model's outputs to a number per row, and how those become the one that is minimised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridrec.parallel.ranks import ranks
from hybridrec.types import Batch

LossFunction = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss: `function(outputs, batch)` gives [B], [B, k] or a scalar; `scores` makes predictions of outputs.

    `low` and `high` bound the labels, which `check_labels` looks at in every batch. `weights` gives the weight of each
    row; None counts all alike. `metrics` are those that the Trainer keeps unless told otherwise.

    >>> hinge = Loss("hinge", lambda out, batch: (1 - (2 * batch.label - 1) * out).clamp(min=0), low=0, high=1)
    >>> hinge.scores(torch.zeros(1))
    tensor([0.5000])
    """

    name: str
    function: LossFunction
    scores: Callable[[Tensor], Tensor] = torch.sigmoid
    low: float = -torch.inf
    high: float = torch.inf
    weights: Callable[[Batch], Tensor | None] = lambda batch: batch.weight
    metrics: tuple[str, ...] = ("auc", "logloss")
    matrix: bool = False  # whether outputs of training are [B, n] for one label: no score per row to measure
    across: bool = False  # whether a row's loss is of the rows of all ranks

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.function(outputs, batch)

    def check_labels(self, batch: Batch) -> None:
        """Raise where a label is outside its range, or not a number."""
        if batch.label is None or not batch.label.numel():
            return
        ends: Any = [end.tolist() for end in batch.label.aminmax()]  # float() would let go of the interpreter
        low, high = ends
        if self.low <= low and high <= self.high and high < torch.inf and low > -torch.inf:
            return
        bad = ~((batch.label >= self.low) & (batch.label <= self.high) & batch.label.isfinite())
        row, *column = bad.nonzero()[0].tolist()
        name = batch.label_names[column[0] if column else 0] if batch.label_names else "label"
        raise BadLabel(self, name, float(batch.label[(row, *column)]), row)

    def range(self) -> str:
        """The labels that it takes, in words."""
        ends = (self.low > -torch.inf, self.high < torch.inf)
        return {(True, True): f"{self.low:g} to {self.high:g}", (True, False): f"{self.low:g} and more"}.get(
            ends, "finite numbers"
        )


class BadLabel(ValueError):
    """A label that its loss does not take. `place` names its row where that is known, else it is a row of the batch."""

    def __init__(self, loss: Loss, name: str, value: float, row: int, place: str | None = None) -> None:
        where = f"row {row} of the batch" if place is None else place
        what = f"label {name!r} is {value:g} in {where}, but loss {loss.name!r} takes {loss.range()}"
        others = ", ".join(LOSSES)
        super().__init__(
            f"{what}; mend the column, or give it a transform in the schema, or choose another loss ({others})"
        )
        self.on_command_line = f"{what}; mend the column, or choose another loss: loss=NAME ({others})"
        self.loss, self.name, self.value, self.row, self.place = loss, name, value, row, place


def label_of(outputs: Tensor, batch: Batch) -> Tensor:
    """The labels of a batch beside its outputs, of the same shape."""
    if batch.label is None:
        raise ValueError("the batch has no label; name it when opening the data: label='click'")
    if batch.label.shape != outputs.shape:
        raise ValueError(
            f"the model gave outputs {list(outputs.shape)} for labels {list(batch.label.shape)}; it must give a number "
            "for each row and label"
        )
    return batch.label.to(outputs.device)


def _bce(outputs: Tensor, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, label_of(outputs, batch), reduction="none")


def _mse(outputs: Tensor, batch: Batch) -> Tensor:
    return F.mse_loss(outputs, label_of(outputs, batch), reduction="none")


def _softmax(outputs: Tensor, batch: Batch) -> Tensor:
    """Classes: outputs [B, C], labels 0 … C - 1."""
    if batch.label is None or batch.label.dim() != 1 or outputs.dim() != 2:
        shape = None if batch.label is None else list(batch.label.shape)
        raise ValueError(
            f"loss 'softmax' takes outputs [B, classes] and labels [B], got {list(outputs.shape)}, {shape}"
        )
    label = batch.label.to(outputs.device)
    whole = label.long()
    if label.numel() and (int(whole.max()) >= outputs.shape[1] or not torch.equal(whole.float(), label.float())):
        worst = label[whole != label].tolist() or [float(label.max())]
        raise ValueError(
            f"label {worst[0]:g} is no class of a model with {outputs.shape[1]} outputs; classes are the whole numbers "
            f"0 to {outputs.shape[1] - 1}"
        )
    return F.cross_entropy(outputs, whole, reduction="none")


def _in_batch_softmax(outputs: Tensor, batch: Batch) -> Tensor:
    """Row i's own item against the items of all rows: outputs [B, B], or more of other ranks. In evaluation as bce."""
    if outputs.dim() == 1:
        return _bce(outputs, batch)
    least, most = len(batch), len(batch) if ranks() is None else outputs.shape[-1]
    if outputs.dim() != 2 or len(outputs) != least or not least <= outputs.shape[1] <= most:
        raise ValueError(
            f"loss 'in_batch_softmax' takes outputs [B, B], got {list(outputs.shape)} for {len(batch)} rows"
        )
    return F.cross_entropy(outputs, torch.arange(len(outputs), device=outputs.device), reduction="none")


def _positive(batch: Batch) -> Tensor | None:
    """Rows that are no clicks have no item to find."""
    if batch.label is None:
        return batch.weight
    chosen = (batch.label > 0).float()
    return chosen if batch.weight is None else chosen * batch.weight


LOSSES = {
    "bce": Loss("bce", _bce, low=0, high=1),
    "mse": Loss("mse", _mse, scores=lambda outputs: outputs, metrics=("rmse",)),
    "softmax": Loss("softmax", _softmax, lambda out: out.softmax(-1), low=0, metrics=(), matrix=True),
    "in_batch_softmax": Loss(
        "in_batch_softmax", _in_batch_softmax, low=0, high=1, weights=_positive, matrix=True, across=True
    ),
}


def make_loss(loss: str | Loss | LossFunction) -> Loss:
    """A loss by name, or of a function of (outputs, batch), whose outputs are then taken to be logits.

    >>> make_loss("mse").metrics
    ('rmse',)
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"loss is {loss!r}; valid are {', '.join(LOSSES)}, or a function of (outputs, batch)")
        return LOSSES[loss]
    if not callable(loss):
        raise TypeError(f"loss is {loss!r}; it must be one of {', '.join(LOSSES)}, or a function of (outputs, batch)")
    return Loss(getattr(loss, "__name__", type(loss).__name__), loss)


def weight_of(loss: Loss, batch: Batch) -> float:
    """The sum of the weights of a batch's rows."""
    weights = loss.weights(batch)
    return float(len(batch)) if weights is None else float(weights.sum())


class Divisor(NamedTuple):
    """What the sum of a batch's losses is divided by, and the batch's share of it; numbers, or scalars on a device.

    >>> Divisor.of(2.0, total=8.0), Divisor.of(0.0, total=0.0)
    (Divisor(total=8.0, share=0.25), Divisor(total=inf, share=0.0))
    """

    total: float | Tensor
    share: float | Tensor

    @staticmethod
    def of(part: float, total: float) -> Divisor:
        """For a batch with this part of the total weight; nothing is left of a loss without any weight."""
        return Divisor(total, part / total) if total else Divisor(torch.inf, 0.0)


def reduce(values: Tensor, weights: Tensor | None, divisor: Divisor, label_weights: Tensor | None = None) -> Tensor:
    """sum(w * l) / total over the rows, after the mean over labels.

    A scalar is a mean over this batch already, and counts by its share of the total.

    >>> reduce(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 0.0]), Divisor.of(1.0, total=1.0))
    tensor(1.)
    >>> reduce(torch.tensor(3.0), None, Divisor.of(2.0, total=6.0))
    tensor(1.)
    """
    values = values.float()
    if values.dim() == 0:
        return values * divisor.share
    if values.dim() == 2:  # [B, k]
        values = values.mean(1) if label_weights is None else values @ label_weights.to(values)
    summed = values.sum() if weights is None else (values * weights.to(values)).sum()
    return summed / divisor.total


def loss_of(loss: Loss, outputs: Tensor, batch: Batch, divisor: Divisor, label_weights: Tensor | None = None) -> Tensor:
    """The loss of a batch, one number: `reduce` of what it gives for each row.

    On a GPU binary cross entropy is one operator, which has three launches with its backward in place of eleven.
    """
    weights = loss.weights(batch)
    if loss.function is _bce and outputs.is_cuda:
        from hybridrec.ops.bce.op import bce, suits  # which needs Triton

        label, of_labels = label_of(outputs, batch), None
        if label_weights is not None and outputs.dim() == 2:
            of_labels = label_weights.to(outputs)
        if suits(outputs, label, weights, of_labels):
            return bce(outputs, label, weights, of_labels, divisor.total)
    return reduce(loss(outputs, batch), weights, divisor, label_weights)
