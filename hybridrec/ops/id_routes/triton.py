"""Routing on the GPU: ids become keys in the order of their ranks, one sort finds the distinct ones.

All buffers have sizes that the host knows from the shape of a block: nothing waits for the device. How many ids are
distinct it tells in `ends`. README.md beside this file has the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of as features
from hybridrec.ops.id_hash import triton as hashing
from hybridrec.ops.id_routes.lines import of
from hybridrec.ops.row_groups import triton as groups

IDS = 512  # of a program


@triton.jit
def route_ids(
    values,  # int64 [N]
    lines,  # int64 [L, LENGTH]
    first_programs,  # int32 [L + 1]
    bases,  # int64: the key of the first row of each holder
    numbers,  # int64: of ids of tables that take any, equal ones for equal ids
    rows,  # int64 [A + M]: the holder's row of each id, or the id itself with ANY; NO_ID where there is none
    keys,  # int32 or int64 [A]
    faults,  # int64 [F], NO_FAULT: the first position of an id outside a table that allows none
    end,  # larger than any key
    IDS: tl.constexpr,
    LINES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Ids of one line: the row that each has there, and its key among those of all ranks."""
    program = tl.program_id(0)
    number = groups.feature_of(first_programs, program, LINES, STEPS)
    line = lines + number * of.LENGTH
    size, policy, holders = tl.load(line + of.SIZE), tl.load(line + of.POLICY), tl.load(line + of.HOLDERS)
    i = (program - tl.load(first_programs + number)) * IDS + tl.arange(0, IDS).to(tl.int64)
    mask = i < tl.load(line + of.COUNT)
    id = tl.load(values + tl.load(line + of.START) + i, mask=mask, other=0)
    none = id == features.NO_ID
    if policy == of.HASH:
        hashed = (hashing.xxh64(id.to(tl.uint64)) % size.to(tl.uint64)).to(tl.int64)
        id = tl.where(((id < 0) | (id >= size)) & (none == 0), hashed, id)
    outside = ((id < 0) | (id >= size)) & (policy != of.ANY) | none
    if policy == of.ERROR:
        wrong = mask & outside & (none == 0)
        first = tl.min(tl.where(wrong, i, of.NO_FAULT))
        if first < of.NO_FAULT:
            tl.atomic_min(faults + tl.load(line + of.FEATURE), first, sem="relaxed")
    row, to, base = id // holders, tl.load(line + of.TO) + i, tl.load(line + of.FIRST)
    if policy == of.ANY:
        row = id
    tl.store(rows + to, tl.where(outside, features.NO_ID, row), mask=mask)
    if base != of.NOT_ASKED:
        there, holder, known = row, id % holders, mask & (outside == 0)
        if policy == of.ANY:
            holder = (hashing.xxh64(id.to(tl.uint64), of.SEED) % holders.to(tl.uint64)).to(tl.int64)
            begin = tl.load(line + of.NUMBERS)
            there = to
            if begin != of.EVERY:
                there = tl.load(numbers + begin + i, mask=known, other=0)
        key = there + tl.load(bases + base + holder, mask=known, other=0)
        tl.store(keys + to, tl.where(outside, end, key).to(keys.dtype.element_ty), mask=mask)


@triton.jit
def number_ids(
    keys,  # [A], ascending
    order,  # int64 [A]: where each was before
    count,  # int32 [A]: distinct keys up to here
    rows,  # int64 [A]
    class_keys,  # int64 [C]: the first key of each class
    class_starts,  # int64 [C]: distinct keys before it
    positions,  # int64 [A]: of each id among the distinct ones of its class; NO_ID where it has no row
    distinct,  # int64 [A]: rows of the distinct ids
    end,
    n,
    CLASSES: tl.constexpr,
    N: tl.constexpr,
):
    """Every id gets the number of its key, and the first of equal keys puts its row on the list."""
    i = tl.program_id(0) * N + tl.arange(0, N)
    mask = i < n
    key = tl.load(keys + i, mask=mask, other=0).to(tl.int64)
    before = tl.load(keys + i - 1, mask=mask & (i > 0), other=-1).to(tl.int64)
    number = tl.load(count + i, mask=mask, other=1).to(tl.int64) - 1
    at = tl.load(order + i, mask=mask, other=0)
    first = tl.zeros([N], tl.int64)
    for c in tl.static_range(CLASSES):
        first = tl.where(key >= tl.load(class_keys + c), tl.load(class_starts + c), first)
    known = mask & (key < end)
    tl.store(positions + at, tl.where(known, number - first, features.NO_ID), mask=mask)
    head = known & (key != before)
    tl.store(distinct + number, tl.load(rows + at, mask=head, other=0), mask=head)


class Routed(NamedTuple):
    """What came of routing."""

    rows: Tensor  # int64 [A + M]: of ids that are asked for, then of those that go as they are
    positions: Tensor  # int64 [A]
    distinct: Tensor  # int64 [A], of which the last of `ends` count
    ends: Tensor  # int64 [S + 1]: distinct ids before each segment, and in all
    faults: Tensor  # int64 [F]


class Segments(NamedTuple):
    """The order of keys: by class, then by rank, then by unit. Made once for a lookup."""

    bases: Tensor  # int64: the key of the first row of each holder of each unit
    borders: Tensor  # int64 [S + 1]: the first key of each segment, and the end of all
    firsts: Tensor  # int64 [C]: the first segment of each class
    end: int


def numbers_of(values: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
    """A number for each id of these runs (first, behind the last) one after the other: equal ones for equal ids.

    >>> numbers_of(torch.tensor([7, 5, 0, -7, 7]), [(0, 2), (3, 5)])
    tensor([2, 1, 0, 2])
    """
    if not runs:
        return values[:0]
    ids, order = torch.cat([values[first:last] for first, last in runs]).sort()
    new = torch.zeros_like(ids)
    new[1:] = ids[1:] != ids[:-1]
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0))


def route(
    values: Tensor,
    lines: Tensor,
    first_programs: Tensor,
    programs: int,
    room: tuple[int, int, int],
    of_keys: Segments,
    numbers: Tensor | None = None,
) -> Routed:
    """Route the ids of a block; `room` has the ids that are asked for, those that go as they are, and the features.

    Ids of tables that take any have their `numbers`.
    """
    asked, sent, count = room
    device, end = values.device, of_keys.end
    rows = torch.empty(asked + sent, dtype=torch.int64, device=device)
    keys = torch.empty(asked, dtype=torch.int32 if end < 2**31 - 1 else torch.int64, device=device)
    faults = torch.full((count,), of.NO_FAULT, device=device)
    if programs:
        kind = {"IDS": IDS, "LINES": len(lines), "STEPS": len(lines).bit_length()}
        of_any = values if numbers is None else numbers
        route_ids[(programs,)](values, lines, first_programs, of_keys.bases, of_any, rows, keys, faults, end, **kind)
    if not asked:
        empty = values.new_empty(0)
        return Routed(rows, empty, empty, torch.zeros_like(of_keys.borders), faults)
    keys, order = keys.sort()
    new = torch.ones(asked, dtype=torch.bool, device=device)
    torch.ne(keys[1:], keys[:-1], out=new[1:])
    counted = new.cumsum(0, dtype=torch.int32)
    before = torch.nn.functional.pad(counted, (1, 0))
    ends = before[torch.searchsorted(keys, of_keys.borders.to(keys.dtype))].long()
    positions, distinct = (torch.empty(asked, dtype=torch.int64, device=device) for _ in range(2))
    class_keys, class_starts = of_keys.borders[of_keys.firsts], ends[of_keys.firsts]
    number_ids[(triton.cdiv(asked, IDS),)](
        *(keys, order, counted, rows, class_keys, class_starts, positions, distinct, end, asked),
        CLASSES=len(class_keys), N=IDS,
    )  # fmt: skip
    return Routed(rows, positions, distinct, ends, faults)
