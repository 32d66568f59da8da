"""A batch of ids becomes slots: those that have a row are found, the others are made distinct, judged and given rows.

Each launch goes over the ids of all tables; programs without a missing id end at once. README.md has the order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridrec.ops.features import of as feature
from hybridrec.ops.hash_index import triton as index_kernels
from hybridrec.ops.hash_rows.lines import of
from hybridrec.ops.hash_rows.triton_begin import begin_rows
from hybridrec.ops.philox import initial_triton


@triton.jit
def _uint32(word):
    """The number without sign that 32 bits are."""
    return word.to(tl.int64) & of.WORD


@triton.jit
def _whole(like, value):
    """A number for each lane, with the bits of int32."""
    return (tl.zeros(like.shape, tl.int64) + value).to(tl.int32)


@triton.jit
def look_up(
    values,  # int64 [N]
    features,  # int64 [F, LENGTH]
    first_programs,  # int32 [F + 1]
    tables,  # int64 [T, 4]: of indexes
    lines,  # int64 [T, LENGTH]
    standing,  # int64 [T, STANDING]
    rows,  # int64 [N]: slots; of training MISSING, or -2 - slot of a row that has expired; else NO_ID
    found,  # int32 [programs]: ids with a row, of training
    missed,  # int32 [programs]: and without one
    TRAIN: tl.constexpr,
    MOVING: tl.constexpr,  # whether entries of some index are moving from another one
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Slots of ids; training touches their rows."""
    _feature, table, at, mask = index_kernels.ids_of_program(features, first_programs, IDS, N, F, STEPS)
    index, buckets = index_kernels.index_of(tables, table, 0)
    id = tl.load(values + at, mask=mask, other=feature.NO_ID)
    hits, misses = 0, 0
    if buckets > 0:
        line = lines + table * of.LENGTH
        clock = tl.load(standing + table * of.STANDING + of.CLOCK)
        given = mask & (id != feature.NO_ID)
        if MOVING:
            slot = index_kernels.search_both(tables, table, id, given)
        else:
            slot, _entry = index_kernels.search(index, buckets, id, given)
        known = slot >= 0
        places = tl.load(line + of.TOUCHED).to(tl.pointer_type(tl.int32)) + slot
        touched = _uint32(tl.load(places, mask=known, other=0))
        old = known & (clock - touched > tl.load(line + of.LIFETIME))
        live = known & (old == 0)
        row = tl.where(live, slot.to(tl.int64), feature.NO_ID)
        if TRAIN:
            tl.store(places, _whole(slot, clock), mask=live & (touched != clock))
            if tl.load(line + of.KIND) == of.LFU:
                counts = tl.load(line + of.COUNTS).to(tl.pointer_type(tl.int32)) + slot
                room = _uint32(tl.load(counts, mask=live, other=0)) < of.MOST_COUNT
                tl.atomic_add(counts, 1, mask=live & room, sem="relaxed")
            absent = tl.where(old, -2 - slot.to(tl.int64), of.MISSING)
            row = tl.where(given & (live == 0), absent, row)
            hits, misses = tl.sum(live.to(tl.int32)), tl.sum((given & (live == 0)).to(tl.int32))
        id = row
    tl.store(rows + at, id, mask=mask)
    if TRAIN:
        tl.store(found + tl.program_id(0), hits)
        tl.store(missed + tl.program_id(0), misses)


@triton.jit
def tally(features, first_programs, found, missed, standing, PARTS: tl.constexpr, N: tl.constexpr):
    """Hits and misses of a feature's table; grid: features."""
    number = tl.program_id(0)
    begin, end = tl.load(first_programs + number) * PARTS, tl.load(first_programs + number + 1) * PARTS
    hits, misses = tl.zeros([N], tl.int64), tl.zeros([N], tl.int64)
    for first in range(begin, end, N):
        i = first + tl.arange(0, N)
        hits += tl.load(found + i, mask=i < end, other=0)
        misses += tl.load(missed + i, mask=i < end, other=0)
    to = standing + tl.load(features + number * feature.LENGTH + feature.TABLE) * of.STANDING
    tl.atomic_add(to + of.HITS, tl.sum(hits), sem="relaxed")
    tl.atomic_add(to + of.MISSES, tl.sum(misses), sem="relaxed")


@triton.jit
def _any_missing(missed, N: tl.constexpr):
    """Whether some of the N ids of a program have no row; of most programs none, and they read nothing else."""
    PARTS: tl.constexpr = (N + of.LOOKED - 1) // of.LOOKED
    return tl.max(tl.load(missed + tl.program_id(0) * PARTS + tl.arange(0, PARTS))) > 0


@triton.jit
def _missing(rows, at, mask):
    """What stands for the slots of ids until they get one, and which of them are to get one."""
    row = tl.load(rows + at, mask=mask, other=of.NO_ID)
    return row, (row < 0) & (row != of.NO_ID)


@triton.jit
def counts_ids(line):
    """Whether it matters to a table how often an id comes in a batch."""
    return (tl.load(line + of.KIND) == of.LFU) | (tl.load(line + of.SKETCH) != 0)


@triton.jit
def want(
    values,
    features,
    first_programs,
    missed,  # int32 [programs of look_up]
    lines,
    rows,
    words,  # int64 [room], EMPTY: table and first position of each distinct id that is wanted
    times,  # int32 [room], zeros: how often it comes, where somebody asks
    places,  # int32 [N]: where each missing id is among those; from `judge` on, where its first position is, at others
    room,  # a power of two
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Missing ids, each once. An id claims a place by compare-and-swap; who finds its id there lowers the position."""
    if _any_missing(missed, N):
        _feature, table, at, mask = index_kernels.ids_of_program(features, first_programs, IDS, N, F, STEPS)
        _row, wanted = _missing(rows, at, mask)
        open = wanted
        id = tl.load(values + at, mask=wanted, other=0)
        hash = (index_kernels.hash_id(id) + table.to(tl.uint64)).to(tl.int64)
        place = tl.where(wanted, hash, at) & (room - 1)
        stride = (hash >> 32) | 1  # of its own: neighbours do not queue up, and a program waits for its longest way
        word = (table << 32) | at
        empty = tl.full(at.shape, of.EMPTY, tl.int64)
        aside = rows + tl.where(mask, at, 0)  # where the others look, since there is no mask; they change nothing
        while tl.max(open.to(tl.int32)) > 0:
            to = tl.where(open, words + place, aside)
            holder = tl.atomic_cas(to, empty, tl.where(open, word, empty), sem="relaxed")
            other = open & (holder != of.EMPTY)
            theirs = tl.load(values + (holder & of.WORD), mask=other, other=0)
            same = other & ((holder >> 32) == table) & (theirs == id)
            tl.atomic_min(words + place, word, mask=same & (holder > word), sem="relaxed")
            open = other & (same == 0)
            place = tl.where(open, (place + stride) & (room - 1), place)
        if counts_ids(lines + table * of.LENGTH):
            tl.atomic_add(times + place, 1, mask=wanted, sem="relaxed")
        tl.store(places + at, place.to(tl.int32), mask=wanted)


@triton.jit
def _drawn(line, id):
    """Whether ids are among those that a table ever lets in."""
    below, key = tl.load(line + of.DRAWN), tl.load(line + of.KEY)
    zeros = tl.zeros(id.shape, tl.uint32)
    low, high = zeros + key.to(tl.uint32), zeros + (key >> 32).to(tl.uint32)
    column = zeros + of.ADMISSION
    word, _, _, _ = initial_triton._philox(id.to(tl.uint32), (id >> 32).to(tl.uint32), column, zeros, low, high)
    return word.to(tl.int64) < below


@triton.jit
def _cells(line, id):
    """Where the counters of ids are in the first line of a sketch, how far on in each next one; and its width."""
    hash, width = index_kernels.hash_id(id), tl.load(line + of.WIDTH)
    return hash, (hash >> 32) | 1, width


@triton.jit
def judge(
    values,
    features,
    first_programs,
    missed,
    lines,
    standing,
    rows,
    words,
    times,
    places,
    sums,  # int32 [N]: what the sketch will say of an id, at its first position
    olds,  # int32 [N]: when an expired row was touched, there too
    marks,  # int8 [N]: what becomes of an id, there too
    fresh,  # int32 [programs]: ids that come
    repeats,  # int32 [programs]: missing ids that are not the first of theirs
    FORCE: tl.constexpr,  # all of them
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Who is let in. Sketches are only read here, so that it does not matter who is asked first."""
    count, others = 0, 0
    if _any_missing(missed, N):
        _feature, table, at, mask = index_kernels.ids_of_program(features, first_programs, IDS, N, F, STEPS)
        row, wanted = _missing(rows, at, mask)
        line = lines + table * of.LENGTH
        place = tl.load(places + at, mask=wanted, other=0)
        begin = tl.load(words + place, mask=wanted, other=0) & of.WORD
        first = wanted & (begin == at)
        again = wanted & (begin != at)
        tl.store(places + at, begin.to(tl.int32), mask=again)
        others = tl.sum(again.to(tl.int32))
        id = tl.load(values + at, mask=first, other=0)
        drawn = first & _drawn(line, id)
        admitted = drawn
        sketch = tl.load(line + of.SKETCH)
        if sketch != 0:
            cells = sketch.to(tl.pointer_type(tl.int32))
            hash, stride, width = _cells(line, id)
            least = tl.full(id.shape, of.WORD, tl.int64)
            for number in tl.static_range(4):
                cell = number * width + ((hash + number * stride).to(tl.int64) & (width - 1))
                least = tl.minimum(least, tl.load(cells + cell, mask=drawn, other=0).to(tl.int64))
            total = least + tl.load(times + place, mask=drawn, other=0)
            admitted = drawn & (total >= tl.load(line + of.MIN_COUNT))
            total = tl.where(drawn, tl.minimum(total, tl.load(line + of.LIMIT)), 0)
            tl.store(sums + at, total.to(tl.int32), mask=first)
        if FORCE:
            admitted = first
        comes, returns = admitted & (row == of.MISSING), admitted & (row < of.MISSING)
        mark = tl.where(comes, of.COMES, tl.where(returns, of.RETURNS, tl.where(first, of.REFUSES, 0)))
        tl.store(marks + at, mark.to(tl.int8), mask=wanted)
        count = tl.sum(comes.to(tl.int32))
        returned = tl.sum(returns.to(tl.int32))
        if returned > 0:  # they are pinned from here on
            to = standing + table * of.STANDING
            touched = tl.load(line + of.TOUCHED).to(tl.pointer_type(tl.int32)) + (-2 - row)
            tl.store(olds + at, tl.load(touched, mask=returns, other=0), mask=returns)
            tl.store(touched, _whole(row, tl.load(to + of.CLOCK)), mask=returns)
            tl.atomic_add(to + of.RETURNED, returned, sem="relaxed")
    tl.store(fresh + tl.program_id(0), count)
    tl.store(repeats + tl.program_id(0), others)


@triton.jit
def tell_fault(to, needed, unpinned):
    """So many rows would have to go, and only so many can."""
    tl.store(to + of.FAULTS, tl.load(to + of.FAULTS) + 1)
    tl.store(to + of.LACKED, needed)
    tl.store(to + of.SPARED, unpinned)


@triton.jit
def make_room(
    features,
    first_programs,
    lines,
    standing,
    before,  # int32 [programs + 1]: ids that come, before those of each program
    ranks,  # int64 [F]: ids that come to the same table, before those of each feature
    FORCE: tl.constexpr,
    EVICT: tl.constexpr,  # whether rows can go
    PARTS: tl.constexpr,
    F: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """How many rows must go, and how many may come; grid: tables."""
    table = tl.program_id(0)
    line, to = lines + table * of.LENGTH, standing + table * of.STANDING
    number = tl.arange(0, WIDTH)
    mine = tl.load(features + number * feature.LENGTH + feature.TABLE, mask=number < F, other=-1) == table
    begin = tl.load(first_programs + number, mask=mine, other=0) * PARTS
    end = tl.load(first_programs + number + 1, mask=mine, other=0) * PARTS
    count = tl.load(before + end, mask=mine, other=0) - tl.load(before + begin, mask=mine, other=0)
    count = count.to(tl.int64)
    tl.store(ranks + number, tl.cumsum(count, 0) - count, mask=mine)
    fresh, most = tl.sum(count), tl.load(line + of.CAPACITY)
    room = most - tl.load(to + of.SIZE)
    needed = tl.maximum(fresh - room, 0)
    allowed, fault = fresh, needed * 0
    if tl.load(line + of.KIND) == of.NONE:
        if FORCE:
            fault = tl.where(needed > 0, 1, fault)
        else:
            allowed = tl.minimum(fresh, room)
            needed = needed * 0
    if not EVICT:
        fault = tl.where(needed > 0, 1, fault)
    if fault > 0:
        allowed = allowed * 0
        tell_fault(to, needed, needed * 0)
    tl.store(to + of.FRESH, fresh)
    tl.store(to + of.NEEDED, needed)
    tl.store(to + of.GOING, tl.where((needed > 0) & (fault == 0), tl.maximum(needed, most // 64), 0))
    tl.store(to + of.ALLOWED, allowed)
    tl.store(to + of.GONE, needed * 0)
    tl.store(to + of.FAULT, fault)


@triton.jit
def _refuse(to, refused):
    """So many ids get no row; many programs would wait for one address, so those that have none pass it over."""
    if (refused > 0) & (tl.load(to + of.FAULT) == 0):
        tl.atomic_add(to + of.REFUSED, refused, sem="relaxed")


@triton.jit
def _count_in_sketch(line, id, sums, mask):
    """Sketches say what was found for these ids: the most that any of them has for a cell."""
    sketch = tl.load(line + of.SKETCH)
    if sketch != 0:
        cells = sketch.to(tl.pointer_type(tl.int32))
        hash, stride, width = _cells(line, id)
        total = tl.load(sums, mask=mask, other=0)
        for number in tl.static_range(4):
            cell = number * width + ((hash + number * stride).to(tl.int64) & (width - 1))
            tl.atomic_max(cells + cell, total, mask=mask & (total > 0), sem="relaxed")


@triton.jit
def bear(
    values,
    features,
    first_programs,
    missed,
    tables,
    lines,
    standing,
    rows,
    words,
    times,
    places,
    sums,
    olds,
    marks,
    before,
    ranks,
    lacking,  # int32 [1]
    homes,  # int64 [T, LENGTH], where BEGIN
    BEGIN: tl.constexpr,  # whether rows get what they begin with
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Slots for those who come, in the order of their first positions, and what leads to their rows.

    First positions get them here. Sketches count their ids, and what was noted for the batch is cleared.
    """
    if _any_missing(missed, N):
        number, table, at, mask = index_kernels.ids_of_program(features, first_programs, IDS, N, F, STEPS)
        index, buckets = index_kernels.index_of(tables, table, 0)
        row, wanted = _missing(rows, at, mask)
        line, to = lines + table * of.LENGTH, standing + table * of.STANDING
        mark = tl.load(marks + at, mask=wanted, other=0)
        first = mark > 0
        id = tl.load(values + at, mask=first, other=0)
        place = tl.load(places + at, mask=first, other=0)
        tl.store(words + place, tl.full(at.shape, of.EMPTY, tl.int64), mask=first)
        begin = tl.load(before + tl.load(first_programs + number) * (IDS // N))
        comes = mark == of.COMES
        rank = tl.load(before + tl.program_id(0)) - begin + tl.cumsum(comes.to(tl.int32), 0) - 1
        rank = rank.to(tl.int64) + tl.load(ranks + number)
        comes = comes & (rank < tl.load(to + of.ALLOWED))
        free = tl.load(line + of.FREE).to(tl.pointer_type(tl.int32)) + (tl.load(to + of.SIZE) - tl.load(to + of.GONE))
        slot = tl.load(free + rank, mask=comes, other=0)
        fault = tl.zeros(at.shape, tl.int64) + tl.load(to + of.FAULT)
        returns = mark == of.RETURNS
        slot = tl.where(returns, -2 - row, slot.to(tl.int64))
        begins = comes | (returns & (fault == 0))
        tl.store(tl.load(line + of.IDS).to(tl.pointer_type(tl.int64)) + slot, id, mask=begins)
        touched = tl.load(line + of.TOUCHED).to(tl.pointer_type(tl.int32)) + slot
        tl.store(touched, _whole(slot, tl.load(to + of.CLOCK)), mask=begins)
        if counts_ids(line):
            if tl.load(line + of.KIND) == of.LFU:
                counts = tl.load(line + of.COUNTS).to(tl.pointer_type(tl.int32)) + slot
                tl.store(counts, tl.load(times + place, mask=begins, other=0), mask=begins)
            tl.store(times + place, _whole(place, 0), mask=first)
        slot = tl.where(begins, slot, of.NO_ID)
        tl.store(rows + at, slot, mask=first)
        _refuse(to, tl.sum((first & (slot < 0)).to(tl.int64)))
        if tl.load(to + of.FAULT) == 0:
            _count_in_sketch(line, id, sums + at, first)
        else:
            tl.store(touched, tl.load(olds + at, mask=returns, other=0), mask=returns)
        left = index_kernels.put(index, buckets, id, slot.to(tl.int32), comes)
        lost = tl.sum(left.to(tl.int32))
        if lost > 0:
            tl.atomic_add(lacking, lost, sem="relaxed")
        if BEGIN:
            begin_rows(homes, table, id, slot, 2)


@triton.jit
def fill_in(
    features,
    first_programs,
    standing,
    rows,
    places,
    repeats,
    IDS: tl.constexpr,
    N: tl.constexpr,
    F: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Missing ids that are not the first of theirs get the slot that the first one has got, if any."""
    if tl.load(repeats + tl.program_id(0)) > 0:
        _feature, table, at, mask = index_kernels.ids_of_program(features, first_programs, IDS, N, F, STEPS)
        _row, wanted = _missing(rows, at, mask)
        begin = tl.load(places + at, mask=wanted, other=0)
        slot = tl.load(rows + begin, mask=wanted, other=of.NO_ID)
        tl.store(rows + at, slot, mask=wanted)
        _refuse(standing + table * of.STANDING, tl.sum((wanted & (slot < 0)).to(tl.int64)))


@triton.jit
def close_batch(standing):
    """What a table has after a batch; grid: tables."""
    to = standing + tl.program_id(0) * of.STANDING
    came, again = tl.minimum(tl.load(to + of.FRESH), tl.load(to + of.ALLOWED)), tl.load(to + of.RETURNED)
    if tl.load(to + of.FAULT) != 0:
        again = again * 0
    tl.store(to + of.SIZE, tl.load(to + of.SIZE) + came - tl.load(to + of.GONE))
    tl.store(to + of.INSERTED, tl.load(to + of.INSERTED) + came + again)
    tl.store(to + of.EXPIRED, tl.load(to + of.EXPIRED) + again)
    tl.store(to + of.RETURNED, again * 0)
