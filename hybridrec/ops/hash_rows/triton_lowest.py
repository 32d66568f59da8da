"""Who goes from a full table: the rows of the lowest score, of equal ones those of the lower id, exactly.

The last one to go is found digit by digit, from the highest: a pass over the records counts the next digit of those
that agree with what is known. All passes are launched, and end at once where no row must go: nobody waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridrec.ops.hash_index import triton as index_kernels
from hybridrec.ops.hash_rows.lines import of
from hybridrec.ops.hash_rows.triton_wanted import _uint32, tell_fault

DIGITS = (*((False, shift) for shift in range(24, -8, -8)), *((True, shift) for shift in range(56, -8, -8)))


@triton.jit
def _candidates(line, to, i, mask):
    """The scores of rows that may go, and which may."""
    touched = tl.load(tl.load(line + of.TOUCHED).to(tl.pointer_type(tl.int32)) + i, mask=mask, other=-1)
    touched = _uint32(touched)
    free = mask & (touched != of.UNSEEN) & (touched != tl.load(to + of.CLOCK))
    score = touched
    if tl.load(line + of.KIND) == of.LFU:
        counts = tl.load(line + of.COUNTS).to(tl.pointer_type(tl.int32))
        score = tl.minimum(_uint32(tl.load(counts + i, mask=free, other=0)), of.MOST_COUNT)
    return score, free, touched


@triton.jit
def _order(id):
    """Ids as numbers without sign, in the same order."""
    return id.to(tl.uint64) ^ 0x8000000000000000


@triton.jit
def _narrowed(table, to, state, counted, number, shift, of_id):
    """Score and id of the last row to go, as far as passes before this one know; and how many of that beginning go."""
    score, id, left = tl.zeros([], tl.int64), tl.zeros([], tl.int64), tl.load(to + of.GOING)
    if number > 0:
        known = state + (table * (of.PASSES + 1) + number - 1) * of.STATE
        if number > 1:
            score, id, left = tl.load(known), tl.load(known + 1), tl.load(known + 2)
        digit = tl.arange(0, of.DIGITS)
        up_to = tl.cumsum(tl.load(counted + (table * of.PASSES + number - 1) * of.DIGITS + digit).to(tl.int64), 0)
        left = tl.minimum(left, tl.max(up_to))
        below = up_to < left
        found = tl.sum(below.to(tl.int64)) << shift.to(tl.int64)
        if of_id != 0:
            id |= found
        else:
            score |= found
        if (number == 1) & (tl.program_id(0) == 0):
            tl.store(to + of.UNPINNED, tl.max(up_to))
        left -= tl.max(tl.where(below, up_to, 0))
    if tl.program_id(0) == 0:
        now = state + (table * (of.PASSES + 1) + number) * of.STATE
        tl.store(now, score)
        tl.store(now + 1, id)
        tl.store(now + 2, left)
    return score, id, left


@triton.jit(do_not_specialize=["number", "shift", "before", "before_of_id"])
def count_digits(
    lines,
    standing,
    state,  # int64 [T, PASSES + 1, STATE]: score, id and rows left, as each pass finds them
    counted,  # int32 [T, PASSES, DIGITS], zeros
    number,  # of the pass
    shift,  # of its digit
    before,  # the shift of the pass before, and whether that was one of ids
    before_of_id,
    OF_ID: tl.constexpr,
    N: tl.constexpr,
):
    """Grid: programs, tables."""
    table = tl.program_id(1)
    line, to = lines + table * of.LENGTH, standing + table * of.STANDING
    if tl.load(to + of.GOING) > 0:
        last, last_id, _left = _narrowed(table, to, state, counted, number, before, before_of_id)
        ids, most = tl.load(line + of.IDS).to(tl.pointer_type(tl.int64)), tl.load(line + of.SLOTS)
        WIDE: tl.constexpr = of.DIGITS
        found = tl.zeros([WIDE], tl.int32)
        for block in range(tl.program_id(0), tl.cdiv(most, N), tl.num_programs(0)):
            i = (block * N + tl.arange(0, N)).to(tl.int64)
            score, free, _touched = _candidates(line, to, i, i < most)
            if OF_ID:
                free = free & (score == last)
                key = _order(tl.load(ids + i, mask=free, other=0))
                known = last_id.to(tl.uint64)
            else:
                key, known = score.to(tl.uint64), last.to(tl.uint64)
            rest = key >> shift.to(tl.uint64)
            agree = free & ((rest >> 8) == ((known >> shift.to(tl.uint64)) >> 8))
            found += tl.histogram((rest & 255).to(tl.int32), WIDE, mask=agree)
        to_add = counted + (table * of.PASSES + number) * of.DIGITS + tl.arange(0, of.DIGITS)
        tl.atomic_add(to_add, found, mask=found > 0, sem="relaxed")


@triton.jit
def _chunk(most, N: tl.constexpr):
    """The rows of a program: neighbours, so that slots that come free are in order."""
    each = tl.cdiv(tl.cdiv(most, N), tl.num_programs(0)) * N
    return tl.program_id(0) * each, tl.minimum(tl.program_id(0) * each + each, most)


@triton.jit
def _goes(line, to, i, mask, last, last_id):
    score, free, touched = _candidates(line, to, i, mask)
    ids = tl.load(line + of.IDS).to(tl.pointer_type(tl.int64))
    id = tl.load(ids + i, mask=free & (score <= last), other=0)
    return free & ((score < last) | ((score == last) & (_order(id) <= last_id.to(tl.uint64)))), id, touched


@triton.jit
def count_going(lines, standing, state, counted, going, N: tl.constexpr):
    """How many go of each program's rows; or that too few can, and nobody does. Grid: programs, tables."""
    table = tl.program_id(1)
    line, to = lines + table * of.LENGTH, standing + table * of.STANDING
    count = 0
    if tl.load(to + of.GOING) > 0:
        passes = tl.full([], of.PASSES, tl.int32)
        last, last_id, _left = _narrowed(table, to, state, counted, passes, passes * 0, passes)
        enough = tl.load(to + of.UNPINNED) >= tl.load(to + of.NEEDED)
        if enough:
            first, end = _chunk(tl.load(line + of.SLOTS), N)
            for at in range(first, end, N):
                i = at + tl.arange(0, N)
                goes, _id, _touched = _goes(line, to, i, i < end, last, last_id)
                count += tl.sum(goes.to(tl.int32))
        elif tl.program_id(0) == 0:
            tl.store(to + of.FAULT, 1)
            tell_fault(to, tl.load(to + of.NEEDED), tl.load(to + of.UNPINNED))
            tl.store(to + of.ALLOWED, 0)
    tl.store(going + table * tl.num_programs(0) + tl.program_id(0), count)


@triton.jit
def list_going(
    lines,
    standing,
    state,
    up_to,  # int32 [T, programs]: rows that go, of this program and those before
    N: tl.constexpr,
):
    """Slots of rows that go, before those that are free already: the last is given first. Grid: programs, tables."""
    table, program = tl.program_id(1), tl.program_id(0)
    line, to = lines + table * of.LENGTH, standing + table * of.STANDING
    ends = up_to + table * tl.num_programs(0)
    if program == 0:
        tl.store(to + of.GONE, tl.load(ends + tl.num_programs(0) - 1).to(tl.int64))
    before = tl.load(ends + program - 1, mask=program > 0, other=0)
    if tl.load(ends + program) > before:
        known = state + (table * (of.PASSES + 1) + of.PASSES) * of.STATE
        last, last_id, most = tl.load(known), tl.load(known + 1), tl.load(line + of.SLOTS)
        place = tl.load(to + of.SIZE) - before
        first, end = _chunk(most, N)
        for at in range(first, end, N):
            i = at + tl.arange(0, N)
            goes, _id, _touched = _goes(line, to, i, i < end, last, last_id)
            free = tl.load(line + of.FREE).to(tl.pointer_type(tl.int32)) + place
            tl.store(free - tl.cumsum(goes.to(tl.int32), 0), i.to(tl.int32), mask=goes)
            place -= tl.sum(goes.to(tl.int32))


@triton.jit
def evict(tables, lines, standing, N: tl.constexpr):
    """Listed rows leave the index, and their slots are free. Grid: programs, tables."""
    table = tl.program_id(1)
    line, to = lines + table * of.LENGTH, standing + table * of.STANDING
    gone = tl.load(to + of.GONE)
    listed = tl.load(to + of.SIZE) - gone
    for first in range(tl.program_id(0) * N, gone.to(tl.int32), tl.num_programs(0) * N):
        i = first + tl.arange(0, N)
        goes = i < gone
        slot = tl.load(tl.load(line + of.FREE).to(tl.pointer_type(tl.int32)) + listed + i, mask=goes, other=0)
        id = tl.load(tl.load(line + of.IDS).to(tl.pointer_type(tl.int64)) + slot, mask=goes, other=0)
        places = tl.load(line + of.TOUCHED).to(tl.pointer_type(tl.int32)) + slot
        touched = _uint32(tl.load(places, mask=goes, other=0))
        old = goes & (tl.load(to + of.CLOCK) - touched > tl.load(line + of.LIFETIME))
        expired, all = tl.sum(old.to(tl.int64)), tl.sum(goes.to(tl.int64))
        tl.atomic_add(to + of.EXPIRED, expired, sem="relaxed")
        tl.atomic_add(to + of.EVICTED, all - expired, sem="relaxed")
        tl.debug_barrier()  # no thread may load again what another has cleared
        index_kernels.remove_both(tables, table, id, slot, goes)
        tl.store(places, tl.full(slot.shape, -1, tl.int32), mask=goes)  # UNSEEN
