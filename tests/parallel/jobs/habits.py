"""What programs do around a backward pass beside the usual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridrec.types import IdBlock, Ragged
from tests.parallel.training_case import Rows


class Habit:
    """The usual: a forward, a loss over all outputs, one backward."""

    def before(self, model: Any, given: Rows) -> None:
        """Before the forward pass."""

    def loss(self, out: Tensor, every: Tensor, given: Rows) -> Tensor:
        """The mean over the rows given; 0 where there are none."""
        return ((out - given.label) ** 2).mean() if len(out) else (out * 0).sum()

    def between(self, model: Any, given: Rows) -> None:
        """After the forward pass, before the backward one."""

    def weight(self, given: Rows) -> float:
        """What the loss counts for in that of all ranks."""
        return float(len(given.label))


class LooksAgain(Habit):
    """A forward without gradient, of one row only, lies between forward and backward."""

    def between(self, model: Any, given: Rows) -> None:
        model.eval()
        with torch.no_grad():
            model([_first(block) for block in given.blocks], given.dense[:1])
        model.train()


class TrainsWithoutGradient(Habit):
    """A forward in training mode, without a gradient, comes first: dynamic tables let its ids in."""

    def before(self, model: Any, given: Rows) -> None:
        with torch.no_grad():
            model(given.blocks, given.dense)


class Forgets(Habit):
    """A forward whose output is not used comes first."""

    def before(self, model: Any, given: Rows) -> None:
        model(given.blocks, given.dense)


class UsesEmbeddings(Habit):
    """The loss reads embeddings beside the prediction."""

    def loss(self, out: Tensor, every: Tensor, given: Rows) -> Tensor:
        return super().loss(out, every, given) + ((every**2).sum(1).mean() if len(every) else every.sum())


class MeanOfNothing(Habit):
    """The loss of an empty batch is NaN, as the mean over nothing is."""

    def loss(self, out: Tensor, every: Tensor, given: Rows) -> Tensor:
        return ((out - given.label) ** 2).mean()


class WeighsRows(Habit):
    """Rows have weights: the loss is their weighted mean, and a rank counts by the sum of its weights."""

    def before(self, model: Any, given: Rows) -> None:
        if hasattr(model, "weigh"):
            model.weigh(self.weight(given))

    def loss(self, out: Tensor, every: Tensor, given: Rows) -> Tensor:
        weights = self._weights(given)
        return (weights * (out - given.label) ** 2).sum() / weights.sum() if len(out) else (out * 0).sum()

    def weight(self, given: Rows) -> float:
        return float(self._weights(given).sum())

    def _weights(self, given: Rows) -> Tensor:
        return given.label.abs() * 3 + 0.1


def _first(block: IdBlock) -> IdBlock:
    """The first row of a block, as ragged lists; nothing of a block without rows."""
    rows = min(1, block.batch_size)
    columns, weights = {}, {}
    for name in block.names:
        lists, of_ids = block[name], block.weights_of(name)
        end = int(lists.offsets[rows])
        columns[name] = Ragged(lists.flat[:end], lists.offsets[: rows + 1])
        weights[name] = torch.ones(end) if of_ids is None else of_ids[:end]
    return IdBlock.from_ragged(columns, None if block.weights is None else weights, batch_size=rows)


HABITS: dict[str, Habit] = {
    "": Habit(),
    "looks again": LooksAgain(),
    "trains without gradient": TrainsWithoutGradient(),
    "forgets": Forgets(),
    "uses embeddings": UsesEmbeddings(),
    "mean of nothing": MeanOfNothing(),
    "weighs rows": WeighsRows(),
}
