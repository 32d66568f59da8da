"""Which ids of a block belong to which table, as kernels read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from hybridrec.ops.features import of


class Spans(NamedTuple):
    """Runs of ids in a block, each of one table; programs are dealt out to them in order."""

    features: Tensor  # int64 [F, of.LENGTH]: START, COUNT and TABLE are read
    first_programs: Tensor  # int32 [F + 1]
    programs: int
    ids: int  # of a program

    def grid(self, each: int) -> tuple[int]:
        """Programs of a launch that has so many ids in each."""
        return (self.programs * max(1, self.ids // each),)

    def kind(self, each: int) -> dict[str, int]:
        """What such a launch is compiled for."""
        count = len(self.features)
        return {"IDS": self.ids, "N": min(each, self.ids), "F": count, "STEPS": count.bit_length()}


def of_counts(counts: Sequence[int], tables: Sequence[int], device: torch.device, ids: int = 512) -> Spans:
    """Runs of so many ids, one after the other.

    >>> of_counts([3, 0, 700], [0, 1, 0], torch.device("cpu")).first_programs
    tensor([0, 1, 1, 3], dtype=torch.int32)
    """
    return of_runs([0, *accumulate(counts)][:-1], counts, tables, device, ids)


def of_runs(
    starts: Sequence[int], counts: Sequence[int], tables: Sequence[int], device: torch.device, ids: int
) -> Spans:
    """Runs of so many ids that start anywhere in a block; those of a table come in this order."""
    lines = torch.zeros(len(counts), of.LENGTH, dtype=torch.int64)
    for place, numbers in ((of.START, starts), (of.COUNT, counts), (of.TABLE, tables)):
        lines[:, place] = torch.tensor(numbers)
    firsts = [0, *accumulate(-(-count // ids) for count in counts)]
    there = torch.tensor(firsts, dtype=torch.int32).to(device, non_blocking=True)
    return Spans(lines.to(device, non_blocking=True), there, firsts[-1], ids)
