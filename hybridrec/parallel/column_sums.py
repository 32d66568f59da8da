"""ColumnSums: numbers of whole rows, added up over the ranks that have their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hybridrec.optim.rule import RowStep

Send = Callable[[Tensor, Sequence[int]], Tensor]  # so many numbers for each rank; those of all ranks, as many of each


class ColumnSums:
    """Adds up what each holder of a table finds over its own columns. It does not know what the numbers are, nor where
    the rows live.

    All holders of a table have gradients of the same rows; they only must give them in the same order. So no sizes are
    asked for, and one message does it for all tables. Sums are made in the order of columns everywhere: what comes of
    them is the same on all holders, bit for bit.
    """

    def __init__(self, rank: int, world: int, holders: Mapping[str, Sequence[int]], send: Send) -> None:
        self._rank, self._world, self._send = rank, world, send
        self._holders = {name: tuple(ranks) for name, ranks in holders.items()}  # in the order of their columns

    def add_up(self, parts: Mapping[str, Tensor], device: torch.device | None = None) -> dict[str, Tensor]:
        """The sums float64 [rows, n] of each table that this rank holds a part of; its own part is given.

        Every rank calls it, for the same tables, also one that holds nothing of them.
        """
        rank, names = self._rank, sorted(parts)
        common = [[name for name in names if r != rank and r in self._holders[name]] for r in range(self._world)]
        sizes = [sum(parts[name].numel() for name in each) for each in common]
        sent = [parts[name].reshape(-1) for each in common for name in each]
        message = torch.cat(sent) if sent else torch.empty(0, dtype=torch.float64, device=device)
        received = self._send(message, sizes)
        found = {(name, rank): part for name, part in parts.items()}
        order = [(name, r) for r, each in enumerate(common) for name in each]
        pieces = received.split([parts[name].numel() for name, _ in order])
        found |= {key: piece.view_as(parts[key[0]]) for key, piece in zip(order, pieces, strict=True)}
        return {name: torch.stack([found[name, r] for r in self._holders[name]]).sum(0) for name in names}


def sums_of(step: RowStep) -> int:
    """How many sums of a row a step wants: the squares of its gradient, and where they decay also those of weights."""
    return 3 if step.weight_decay and any(column.per_row for column in step.rule.state) else 1
