"""Runs: which ids of a block belong to tables that share a cache, and where the rows of each begin there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from hybridrec.ops.constants import constants

AWAY = -(2**62)  # minus it: an id outside its table that would read as a slot


class Of(NamedTuple):
    """The places of a line."""

    START: int = 0  # of its ids in the block
    COUNT: int = 1  # ids
    ROWS: int = 2  # of its table
    BASE: int = 3  # the first of those among the rows of the cache
    HASHED: int = 4  # whether an id outside the table has a row by its hash
    FIRST: int = 5  # where its ids begin among those of all runs
    LENGTH: int = 6  # numbers in a line

    AWAY: int = AWAY


of = constants(Of())


class Run(NamedTuple):
    """Neighbouring ids of a block that are of one table."""

    start: int
    count: int
    rows: int  # of the table
    base: int
    hashed: bool = False


class Runs(NamedTuple):
    """Runs as kernels read them; programs are dealt out to them in order."""

    lines: Tensor  # int64 [F, LENGTH]
    first_programs: Tensor  # int32 [F + 1]
    programs: int
    count: int  # ids of all
    ids: int  # of a program

    @classmethod
    def make(cls, runs: Sequence[Run], device: torch.device, ids: int) -> Runs:
        """Of programs with so many ids each.

        >>> Runs.make([Run(0, 3, 10, 0), Run(7, 5, 20, 10)], torch.device("cpu"), ids=4).first_programs
        tensor([0, 1, 3], dtype=torch.int32)
        """
        counts = [run.count for run in runs]
        firsts, programs = [0, *accumulate(counts)], [0, *accumulate(-(-count // ids) for count in counts)]
        lines = [(*run, first) for run, first in zip(runs, firsts, strict=False)]
        there = torch.tensor(lines).to(device, non_blocking=True)
        begins = torch.tensor(programs, dtype=torch.int32).to(device, non_blocking=True)
        return cls(there, begins, programs[-1], firsts[-1], ids)


def told(value: int, rows: int, slots: int) -> int:
    """The id that a lookup found to be outside a table of so many rows, where others have slots.

    >>> told(AWAY - 12, rows=10, slots=20), told(-3, 10, 20), told(AWAY - 5, 10, 20) == AWAY - 5
    (12, -3, True)
    """
    return AWAY - value if rows <= AWAY - value < slots else value
