"""Ids of tables that share a cache, as its rows, and slots in their places: in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridrec.embedding.id_hash import hashed_rows
from hybridrec.ops.row_cache.runs import AWAY, Run
from hybridrec.types.id_block import NO_ID


def rows_of(values: Tensor, runs: Sequence[Run]) -> Tensor:
    """The rows int64 of the ids of all runs, one run behind the other; `NO_ID` of those that have none.

    >>> rows_of(torch.tensor([3, 9, 9, 0, 12]), [Run(0, 2, 10, 0), Run(3, 2, 5, 10)]).tolist() == [3, 9, 10, NO_ID]
    True
    """
    made = [torch.where(_outside(ids, run) | (ids == NO_ID), NO_ID, ids + run.base) for ids, run in _each(values, runs)]
    return torch.cat(made)


def put_slots(values: Tensor, runs: Sequence[Run], slots: Tensor, count: int, out: Tensor) -> None:
    """Write the slots of all runs to where the ids are in the block; `count` slots there are.

    An id outside its table stays as it is, so that the lookup finds the fault, or is taken from `AWAY` if it would read
    as a slot.
    """
    found = slots.split([run.count for run in runs])
    for (ids, run), mine in zip(_each(values, runs), found, strict=True):
        told = torch.where((ids >= 0) & (ids < count), AWAY - ids, ids)
        out[run.start : run.start + run.count] = torch.where(_outside(ids, run), told, mine)


def _each(values: Tensor, runs: Sequence[Run]) -> list[tuple[Tensor, Run]]:
    """The ids of every run; those that go by their hash as rows of their table."""
    made = []
    for run in runs:
        ids = values[run.start : run.start + run.count]
        if run.hashed:
            ids = torch.where(_beyond(ids, run), hashed_rows(ids, run.rows), ids)
        made.append((ids, run))
    return made


def _beyond(ids: Tensor, run: Run) -> Tensor:
    return ((ids < 0) | (ids >= run.rows)) & (ids != NO_ID)


def _outside(ids: Tensor, run: Run) -> Tensor:
    return torch.zeros_like(ids, dtype=torch.bool) if run.hashed else _beyond(ids, run)
