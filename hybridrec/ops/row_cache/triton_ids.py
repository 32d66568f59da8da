"""Ids of tables that share a cache become its rows on the GPU, and slots go where the ids were in their block.

One launch each, however many features and tables there are: a program works for one run of ids.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of as features
from hybridrec.ops.id_hash.triton import xxh64
from hybridrec.ops.row_cache.runs import Runs, of
from hybridrec.ops.row_groups.triton import feature_of


@triton.jit
def _ids(values, lines, first_programs, IDS: tl.constexpr, RUNS: tl.constexpr, STEPS: tl.constexpr):
    """The line of a program's run, which of its ids it has, where they are in the block, and the ids themselves."""
    program = tl.program_id(0)
    run = feature_of(first_programs, program, RUNS, STEPS)
    line = lines + run * of.LENGTH
    i = (program - tl.load(first_programs + run)).to(tl.int64) * IDS + tl.arange(0, IDS)
    mine = i < tl.load(line + of.COUNT)
    at = tl.load(line + of.START) + i
    return line, mine, tl.load(line + of.FIRST) + i, at, tl.load(values + at, mask=mine, other=features.NO_ID)


@triton.jit
def number_rows(
    values,  # int64 [N]
    lines,  # int64 [RUNS, LENGTH]
    first_programs,  # int32 [RUNS + 1]
    rows,  # int64 [count]
    IDS: tl.constexpr,
    RUNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The rows of ids among those of all tables; `NO_ID` where there is none."""
    line, mine, to, _, id = _ids(values, lines, first_programs, IDS, RUNS, STEPS)
    size = tl.load(line + of.ROWS)
    inside, hashed = (id >= 0) & (id < size), tl.load(line + of.HASHED) != 0
    row = id
    if hashed:
        row = tl.where(inside, id, (xxh64(id.to(tl.uint64)) % size.to(tl.uint64)).to(tl.int64))
    there = (id != features.NO_ID) & (inside | hashed)
    tl.store(rows + to, tl.where(there, row + tl.load(line + of.BASE), features.NO_ID), mask=mine)


@triton.jit
def place_slots(
    values,
    lines,
    first_programs,
    slots,  # int64 [count]
    out,  # int64 [N]
    count,  # slots there are
    IDS: tl.constexpr,
    RUNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Slots go where the ids are; ids outside their table stay, those that would read as slots taken from `AWAY`."""
    line, mine, source, at, id = _ids(values, lines, first_programs, IDS, RUNS, STEPS)
    outside = ((id < 0) | (id >= tl.load(line + of.ROWS))) & (id != features.NO_ID)
    outside = outside & (tl.load(line + of.HASHED) == 0)
    slot = tl.load(slots + source, mask=mine, other=0)
    told = tl.where((id >= 0) & (id < count), of.AWAY - id, id)
    tl.store(out + at, tl.where(outside, told, slot), mask=mine)


def rows_of(values: Tensor, runs: Runs) -> Tensor:
    """The rows int64 of the ids of all runs, one run behind the other; `NO_ID` of those that have none."""
    rows = torch.empty(runs.count, dtype=torch.int64, device=values.device)
    if runs.programs:
        number_rows[(runs.programs,)](values, runs.lines, runs.first_programs, rows, **_kind(runs))
    return rows


def put_slots(values: Tensor, runs: Runs, slots: Tensor, count: int, out: Tensor) -> None:
    """Write the slots of all runs to where the ids are in the block; `count` slots there are."""
    if runs.programs:
        given = values, runs.lines, runs.first_programs, slots, out, count
        place_slots[(runs.programs,)](*given, **_kind(runs))


def _kind(runs: Runs) -> dict[str, int]:
    return {"IDS": runs.ids, "RUNS": len(runs.lines), "STEPS": len(runs.lines).bit_length()}
