"""Copies: tables that every rank has whole must take the same step everywhere, in every bit.

Each rank hears the gradients of all ranks for them, and adds them up in the order of the ranks: the first occurrence
of a row takes what the others have, and these lead to no row any more. What kernels sum in any order has one term.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hybridrec.parallel.unfed import NOTHING
from hybridrec.types.id_block import NO_ID


class Copies:
    """The ids of copied tables that all ranks have sent: of each rank its units, and of each unit every id once.

    `counts` int64 [world, units] are theirs, `begins` [world] where those of each rank begin in the ids of all, and
    `firsts` [world] where their gradients do; `widths` [units] ascend.
    """

    def __init__(
        self, values: Tensor, counts: np.ndarray, begins: np.ndarray, firsts: np.ndarray, widths: np.ndarray
    ) -> None:
        self._counts, self._firsts, self._widths = counts, firsts, widths
        self._spans = list(zip(begins.tolist(), counts.sum(1).tolist(), strict=True))
        ids = torch.cat([values[begin : begin + count] for begin, count in self._spans])
        units = torch.from_numpy(np.tile(np.arange(len(widths)), len(counts))).to(values.device, non_blocking=True)
        sizes = torch.from_numpy(counts.ravel().copy()).to(values.device, non_blocking=True)
        units = torch.repeat_interleave(units, sizes, output_size=len(ids))
        self._heads = _first_of_equals(ids * len(widths) + units)
        first = self._heads == torch.arange(len(ids), device=values.device)
        self._ids = torch.where(first, ids, NO_ID)

    def without_others(self, values: Tensor) -> Tensor:
        """The ids, of which each row of a copied table has one."""
        made, parts = values.clone(), self._ids.split([count for _, count in self._spans])
        for (begin, count), part in zip(self._spans, parts, strict=True):
            made[begin : begin + count] = part
        return made

    def fold(self, numbers: Tensor) -> None:
        """Add up the gradients in place, in the order of the ranks."""
        for width in np.unique(self._widths).tolist():
            mine = self._widths == width
            places = self._places(mine, width)
            rows = torch.cat([numbers[first : first + n * width] for first, n, _ in places]).view(-1, width)
            sums = torch.full_like(rows, NOTHING)  # to which anything can be added, and stays what it is
            heads = self._of_width(mine, places)
            for part, to in zip(rows.split([n for _, n, _ in places]), heads, strict=True):
                sums.index_add_(0, to, part)  # no row of a rank comes twice
            for (first, n, _), part in zip(places, sums.split([n for _, n, _ in places]), strict=True):
                numbers[first : first + n * width] = part.flatten()

    def _places(self, mine: np.ndarray, width: int) -> list[tuple[int, int, int]]:
        """Of each rank: where the gradients of units of a width begin, how many there are, where their ids begin."""
        before = np.flatnonzero(mine)[0]
        firsts = self._firsts + self._counts[:, :before] @ self._widths[:before]
        ends = np.concatenate([[0], np.cumsum(self._counts.sum(1))[:-1]]) + self._counts[:, :before].sum(1)
        counts = self._counts[:, mine].sum(1)
        return list(zip(firsts.tolist(), counts.tolist(), ends.tolist(), strict=True))

    def _of_width(self, mine: np.ndarray, places: list[tuple[int, int, int]]) -> list[Tensor]:
        """The heads of ids of a width, by rank, as numbers among the ids of this width."""
        if mine.all():
            return list(self._heads.split([n for _, n, _ in places]))
        numbers = torch.zeros_like(self._heads)
        at = 0
        for _, n, begin in places:
            torch.arange(at, at + n, out=numbers[begin : begin + n])
            at += n
        return [numbers[self._heads[begin : begin + n]] for _, n, begin in places]


def _first_of_equals(keys: Tensor) -> Tensor:
    """The first place of each key, int64 [n].

    >>> _first_of_equals(torch.tensor([7, 5, 7, 5, 9]))
    tensor([0, 1, 0, 1, 4])
    """
    if not len(keys):
        return keys
    ordered, order = keys.sort(stable=True)
    new = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    torch.ne(ordered[1:], ordered[:-1], out=new[1:])
    at = torch.arange(len(keys), device=keys.device)
    begins = torch.where(new, at, 0).cummax(0).values
    return torch.empty_like(order).scatter_(0, order, order[begins])
