"""Everyones: rows of all ranks that train together, as negatives and counts need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridrec.parallel.ranks import Ranks


class Everyones:
    """Rows of all ranks, this rank's own first, then those of the others in their order.

    `sizes` is how many rows each rank has. `gather` may be called for any number of tensors with those rows; in the
    backward the gradients of all ranks come back to the rank whose rows they are of.

    >>> everyones = Everyones(Ranks(0, 1), 2)
    >>> everyones.gather(torch.tensor([5, 6]))
    tensor([5, 6])
    """

    def __init__(self, ranks: Ranks, rows: int) -> None:
        self.ranks = ranks
        self.sizes: list[int] = ranks.stacked(torch.tensor([rows])).flatten().tolist()

    def gather(self, rows: Tensor) -> Tensor:
        """[B, ...] of each rank to [sum of B, ...]."""
        made = _Gather.apply(rows, self)
        assert isinstance(made, Tensor)
        return made

    def parts(self, rows: Tensor) -> list[Tensor]:
        """The rows of every rank, in their order."""
        padded = rows.new_zeros(max(self.sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        found = self.ranks.stacked(padded)
        return [part[:size] for part, size in zip(found, self.sizes, strict=True)]

    def own_first(self, parts: list[Tensor]) -> Tensor:
        """Parts in the order of ranks as one tensor, the own part in front."""
        rank = self.ranks.rank
        return torch.cat([parts[rank], *parts[:rank], *parts[rank + 1 :]])

    def in_order(self, rows: Tensor) -> list[Tensor]:
        """The opposite: the parts of such a tensor in the order of ranks."""
        rank = self.ranks.rank
        own, *others = rows.split([self.sizes[rank], *self.sizes[:rank], *self.sizes[rank + 1 :]])
        return [*others[:rank], own, *others[rank:]]


class _Gather(torch.autograd.Function):
    """A rank's loss is a mean over its own rows and counts by its share of them.

    So its gradient counts by its share too where it goes to another rank, whose share is taken out again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, everyones: Everyones) -> Tensor:
        ctx.everyones = everyones
        return everyones.own_first(everyones.parts(rows))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        everyones: Everyones = ctx.everyones
        rank, own = everyones.ranks.rank, everyones.sizes[everyones.ranks.rank]
        summed = everyones.ranks.sum(torch.cat(everyones.in_order(grad)) * own)
        return summed.split(everyones.sizes)[rank] / max(own, 1), None
