"""Grouping on the GPU without a sort of all ids: occurrences count themselves, rows draw places, occurrences go there.

Three launches over the ids, and nothing waits for the host. A program first sorts the few ids it has, so that a row in
frequent use costs it one atomic operation, not one per occurrence. README.md beside this file has the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import of
from hybridrec.ops.row_groups import triton_eight, triton_sort


@dataclass(frozen=True)
class Sizes:
    """How the work is cut; found best on an H200."""

    ids: int = 512  # of a program
    few: int = 16  # most occurrences of a row that has few
    chunk: int = 64  # occurrences of a row that has many, summed by one program
    programs: int = 1056  # that go round a list whose length only the device knows
    warps: int = 4
    turns: int = 64  # parts of a batch, from which programs that count come in turn
    part: int = 128  # first occurrences of rows that a program lists at a time

    def fitting(self, longest: int) -> Sizes:
        """For features of at most so many ids: the fewer, the less often programs meet at one row.

        >>> Sizes().fitting(65_536).ids, Sizes().fitting(2_000_000).ids
        (256, 512)
        """
        return replace(self, ids=max(16, self.ids // 2)) if longest < 1 << 20 else self


@triton.jit
def feature_of(first_programs, program, FEATURES: tl.constexpr, STEPS: tl.constexpr):
    """The feature a program works for: the last whose first program is not later."""
    low = 0
    high = FEATURES
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        after = tl.load(first_programs + middle) <= program
        low = tl.where(after, middle, low)
        high = tl.where(after, high, middle)
    return low


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def turned(program, programs, turns):
    """Programs in another order: neighbours, which run at the same time, come from different parts of the batch.

    Those of one feature have the same rows in frequent use. Places of these lie side by side, so that atomic
    operations of all programs would wait for each other at a few lines of the cache. May be `programs` or more.
    """
    return (program % turns) * tl.cdiv(programs, turns) + program // turns


@triton.jit
def _sorted(ids, lanes, IDS: tl.constexpr, BITS: tl.constexpr):
    """Rows and lanes of ids, sorted, and for each where those of its row begin."""
    keys = triton_sort.ascending(ids * IDS + lanes, BITS)
    lane = keys & (IDS - 1)
    order = keys - lane + (IDS - 1 - tl.arange(0, IDS))  # of one row, the first has the largest
    head = (IDS - 1) - (tl.associative_scan(order, 0, _larger) & (IDS - 1)).to(tl.int32)
    return (keys >> BITS).to(tl.int32), lane.to(tl.int32), head


@triton.jit
def _lengths(heads, t, THREADS: tl.constexpr):
    """The number of occurrences of its row, where it is the first of them, else 0; of eight neighbours of a thread."""
    first = tl.full([THREADS], 8 * THREADS, tl.int32)
    for r in tl.static_range(7, -1, -1):
        first = tl.where(heads[r] == 8 * t + r, 8 * t + r, first)
    after = tl.gather(tl.associative_scan(first, 0, _smaller, reverse=True), tl.minimum(t + 1, THREADS - 1), 0)
    end, lengths = tl.where(t == THREADS - 1, 8 * THREADS, after), ()
    for r in tl.static_range(7, -1, -1):
        begins = heads[r] == 8 * t + r
        lengths = (tl.where(begins, end - heads[r], 0),) + lengths  # noqa: RUF005 (kernels have no starred tuples)
        end = tl.where(begins, heads[r], end)
    return lengths


@triton.jit
def count_occurrences(
    values,  # int64 [N]
    features,  # int64 [F, LENGTH]
    first_programs,  # int32 [F + 1]
    places,  # int32 [rows of all tables], zeros
    rows,  # int32 [programs, IDS]: what the ids of each program lead to, sorted
    lanes,  # int16 [programs, IDS]: where they stood before
    ranks,  # int32 [programs, IDS]: of an occurrence among those of its row; -1 where there is no row
    firsts,  # int16 [programs, IDS]: where the first occurrences of rows stand among those of a program
    numbers,  # int32 [programs]: how many there are
    programs,
    turns,  # parts of the programs, from which they come in turn
    IDS: tl.constexpr,
    BITS: tl.constexpr,
    FEATURES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Every occurrence gets a rank of its own within its row, and `places` the number of occurrences."""
    program = turned(tl.program_id(0), programs, turns)
    if program >= programs:
        return
    feature = feature_of(first_programs, program, FEATURES, STEPS)
    line = features + feature * of.LENGTH
    at = (program - tl.load(first_programs + feature)) * IDS
    left, size = (tl.load(line + of.COUNT) - at).to(tl.int32), tl.load(line + of.SIZE)
    values += tl.load(line + of.START) + at
    THREADS: tl.constexpr = IDS // 8  # each with eight ids, if there are as many
    t, e = tl.arange(0, THREADS), tl.arange(0, IDS)
    i = e % 8 * THREADS + e // 8  # neighbouring threads load neighbours
    id = tl.load(values + i, mask=i < left, other=-1)
    id = tl.where((id >= 0) & (id < size), id, -1)
    narrow = size <= 2147483648 // IDS
    if not narrow:  # a dynamic table may have many slots, of which the first are in use
        narrow = tl.max(id, 0) < 2147483648 // IDS
    if narrow:  # sorting half the bits takes half the time
        row, lane, head = _sorted(id.to(tl.int32), i, IDS, BITS)
    else:
        row, lane, head = _sorted(id, i, IDS, BITS)
    tl.store(lanes + program * IDS + e, lane.to(tl.int16))
    lengths = _lengths(triton_eight.eight(head, THREADS), t, THREADS)
    runs = triton_eight.abreast(head | (triton_eight.joined(lengths, THREADS) << 16), THREADS)
    row_of = triton_eight.abreast(row, THREADS)
    places += tl.load(line + of.BASE)
    earlier, new, news = (), (), tl.zeros([THREADS], tl.int32)
    for r in tl.static_range(8):
        speaks = (runs[r] >> 16 > 0) & (row_of[r] >= 0)
        found = tl.atomic_add(places + row_of[r], runs[r] >> 16, mask=speaks, sem="relaxed")
        first = speaks & (found == 0)
        earlier, new, news = earlier + (found,), new + (first,), news + first  # noqa: RUF005
    earlier, heads = triton_eight.in_line(earlier, THREADS), triton_eight.in_line(runs, THREADS) & 65535
    earlier = triton_eight.abreast(tl.gather(earlier, heads, 0), THREADS)
    to, of_firsts = program * IDS + t, firsts + program * IDS + tl.cumsum(news, 0) - news
    for r in tl.static_range(8):
        tl.store(rows + to + r * THREADS, row_of[r])
        rank = earlier[r] + r * THREADS + t - (runs[r] & 65535)
        tl.store(ranks + to + r * THREADS, tl.where(row_of[r] >= 0, rank, -1))
        tl.store(of_firsts, (r * THREADS + t).to(tl.int16), mask=new[r])
        of_firsts += new[r]
    tl.store(numbers + program, tl.sum(news))


@triton.jit
def _word(ones, fews, members, parts, SHORT: tl.constexpr, LONG: tl.constexpr):
    """Four numbers of each lane as one: SHORT bits for each of the first two, LONG for the third."""
    word = ones.to(tl.int64) | (fews.to(tl.int64) << SHORT) | (members.to(tl.int64) << (2 * SHORT))
    return word | (parts.to(tl.int64) << (2 * SHORT + LONG))


@triton.jit
def _draw(counter, word, total, SHORT: tl.constexpr, LONG: tl.constexpr):
    """Places for the lanes that want some, one after the other from four counters that lie side by side.

    What the lanes want is a `_word`. So there is one sum over the lanes and one access to the counters.
    """
    low, high = (1 << SHORT) - 1, (1 << LONG) - 1
    before = tl.cumsum(word) - word
    which = tl.arange(0, 4)
    shift = tl.where(which == 0, 0, tl.where(which == 1, SHORT, tl.where(which == 2, 2 * SHORT + LONG, 2 * SHORT)))
    room = tl.where(which < 2, low, tl.where(which == 2, -1, high))
    wanted = ((total >> shift.to(tl.int64)) & room).to(tl.int32)
    drawn = tl.atomic_add(counter + which, wanted, mask=wanted > 0, sem="relaxed")
    first, second = tl.sum(tl.where(which == 0, drawn, 0)), tl.sum(tl.where(which == 1, drawn, 0))
    third, fourth = tl.sum(tl.where(which == 2, drawn, 0)), tl.sum(tl.where(which == 3, drawn, 0))
    return (
        first + (before & low).to(tl.int32),
        second + ((before >> SHORT) & low).to(tl.int32),
        fourth + ((before >> (2 * SHORT)) & high).to(tl.int32),
        third + (before >> (2 * SHORT + LONG)).to(tl.int32),
    )


@triton.jit
def _gradient(
    line, feature, start, i, mask, bag_of, scales, weights, batch, SHARES: tl.constexpr, WEIGHTED: tl.constexpr
):  # fmt: skip
    """Where the gradient of each occurrence begins, and what it is multiplied by."""
    hotness = tl.load(line + of.HOTNESS).to(tl.int32)
    if hotness == 1:
        bag = i
    elif hotness > 0:  # with 0 there are no ids
        bag = i // hotness
    else:
        bag = tl.load(bag_of + start + i, mask=mask, other=0)
    share = tl.full(bag.shape, 1.0, tl.float32)
    if SHARES:
        if tl.load(line + of.COMBINER) > 0:  # mean or sqrtn
            share = tl.load(scales + feature.to(tl.int64) * batch + bag, mask=mask, other=0.0)
        if WEIGHTED:
            share *= tl.load(weights + start + i, mask=mask, other=0.0)
    return bag * tl.load(line + of.STRIDE).to(tl.int32) + tl.load(line + of.COLUMN).to(tl.int32), share


@triton.jit
def list_rows(
    features,
    first_programs,
    places,
    rows,
    lanes,
    ranks,
    firsts,
    numbers,
    bag_of,  # int32 [N]: the bag of each id of a ragged feature
    scales,  # float32 [F, B], if SHARES
    weights,  # float32 [N], if WEIGHTED
    lists,  # int32 [classes, 2]: where the lists of a class begin, and its chunks
    counters,  # int32 [classes, 4], zeros: rows with one occurrence, with few; chunks; and grouped occurrences
    single,  # int32 [3, N]: row, table, and where the gradient begins
    single_share,  # float32 [N], if SHARES
    few,  # int32 [4, N]: row, table, place, occurrences
    many,  # int32 [4, M]: row, table, occurrences, at the row's first chunk; and of every chunk its row's first one
    batch,
    n,
    chunks,
    IDS: tl.constexpr,
    PART: tl.constexpr,
    FEW: tl.constexpr,
    CHUNK: tl.constexpr,
    SHORT: tl.constexpr,
    LONG: tl.constexpr,
    SHARES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FEATURES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The first occurrence of each row puts it on a list, by how many there are, and draws its places."""
    program = tl.program_id(0)
    there = tl.load(numbers + program)
    if there == 0:  # as in many programs
        return
    feature = feature_of(first_programs, program, FEATURES, STEPS)
    line = features + feature * of.LENGTH
    start, kind = tl.load(line + of.START), tl.load(line + of.CLASS)
    table = tl.zeros([PART], tl.int32) + tl.load(line + of.TABLE).to(tl.int32)
    for part in range(0, there, PART):
        k = part + tl.max_contiguous(tl.arange(0, PART), 1)  # neighbours belong to neighbouring threads
        mine = k < there
        at = program * IDS + tl.load(firsts + program * IDS + k, mask=mine, other=0).to(tl.int32)
        row = tl.load(rows + at, mask=mine, other=0)
        lane = tl.load(lanes + at, mask=mine, other=0).to(tl.int32)
        i = (program - tl.load(first_programs + feature)) * IDS + lane
        place = places + tl.load(line + of.BASE) + row
        times = tl.load(place, mask=mine, other=0)
        alone, some, lots = mine & (times == 1), mine & (times > 1) & (times <= FEW), mine & (times > FEW)
        parts = tl.where(lots, (times + CHUNK - 1) // CHUNK, 0)
        word = _word(alone, some, tl.where(some, times, 0), parts, SHORT, LONG)
        total = tl.sum(word)
        first = tl.load(lists + kind * 2)
        ones, fews, members, parts = _draw(counters + kind * 4, word, total, SHORT, LONG)
        if (total & ((1 << SHORT) - 1)) != 0:
            to = first + ones
            gradient, share = _gradient(
                line, feature, start, i, alone, bag_of, scales, weights, batch, SHARES, WEIGHTED
            )
            tl.store(single + to, row, mask=alone)
            tl.store(single + n + to, table, mask=alone)
            tl.store(single + 2 * n + to, gradient, mask=alone)
            if SHARES:
                tl.store(single_share + to, share, mask=alone)
            tl.store(ranks + at, tl.full([PART], -1, tl.int32), mask=alone)  # there is no place to go to
            tl.store(place, tl.zeros([PART], tl.int32), mask=alone)
        if ((total >> SHORT) & ((1 << SHORT) - 1)) != 0:
            to = first + fews
            tl.store(few + to, row, mask=some)
            tl.store(few + n + to, table, mask=some)
            tl.store(few + 2 * n + to, first + members, mask=some)
            tl.store(few + 3 * n + to, times, mask=some)
            tl.store(place, first + members, mask=some)
        if (total >> (2 * SHORT + LONG)) != 0:
            chunk = tl.load(lists + kind * 2 + 1) + parts
            tl.store(many + chunk, row, mask=lots)
            tl.store(many + chunks + chunk, table, mask=lots)
            tl.store(many + 2 * chunks + chunk, times, mask=lots)
            tl.store(place, chunk * CHUNK + of.MANY, mask=lots)


@triton.jit
def place_occurrences(
    features,
    first_programs,
    places,
    rows,
    lanes,
    ranks,
    bag_of,
    scales,
    weights,
    grouped,  # int32 [N]: where the gradients of the occurrences of a row begin, rows with few
    grouped_share,  # float32 [N], if SHARES
    crowd,  # int32 [M * CHUNK]: the same for rows with many, each from the begin of a chunk
    crowd_share,
    many,
    batch,
    chunks,
    IDS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    FEATURES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Occurrences of rows with more than one go to their places."""
    program = tl.program_id(0)
    feature = feature_of(first_programs, program, FEATURES, STEPS)
    line = features + feature * of.LENGTH
    start = tl.load(line + of.START)
    at = program * IDS + tl.max_contiguous(tl.arange(0, IDS), 1)  # neighbours belong to neighbouring threads
    rank = tl.load(ranks + at)
    found = rank >= 0
    place = places + tl.load(line + of.BASE) + tl.load(rows + at, mask=found, other=0)
    i = (program - tl.load(first_programs + feature)) * IDS + tl.load(lanes + at).to(tl.int32)
    to = tl.load(place, mask=found, other=0)
    gradient, share = _gradient(line, feature, start, i, found, bag_of, scales, weights, batch, SHARES, WEIGHTED)
    some, lots = found & (to < of.MANY), found & (to >= of.MANY)
    tl.store(grouped + to + rank, gradient, mask=some)
    seat = to - of.MANY + rank
    tl.store(crowd + seat, gradient, mask=lots)
    if SHARES:
        tl.store(grouped_share + to + rank, share, mask=some)
        tl.store(crowd_share + seat, share, mask=lots)
    tl.store(many + 3 * chunks + seat // CHUNK, (to - of.MANY) // CHUNK, mask=lots & (rank % CHUNK == 0))


@triton.jit
def clear_places(places, bases, lists, counters, few, many, n, chunks, N: tl.constexpr):
    """Zeros again in the places of the rows of all lists: of each class those with few, and those with many."""
    kind, crowded = tl.program_id(1) // 2, tl.program_id(1) % 2
    total, begin = tl.load(counters + kind * 4 + 1 + crowded), tl.load(lists + kind * 2 + crowded)
    listed = many if crowded == 1 else few
    length = chunks if crowded == 1 else n
    for block in range(tl.program_id(0), tl.cdiv(total, N), tl.num_programs(0)):
        i = begin + block * N + tl.arange(0, N)
        mine = i < begin + total
        if crowded == 1:  # chunks, of which only the first of a row names it
            mine = mine & (tl.load(many + 3 * chunks + i, mask=mine, other=-1) == i)
        row = tl.load(listed + i, mask=mine, other=0)
        base = tl.load(bases + tl.load(listed + length + i, mask=mine, other=0), mask=mine, other=0)
        tl.store(places + base + row, tl.zeros([N], tl.int32), mask=mine)


@dataclass(eq=False)
class RowGroups:
    """The rows that ids lead to, by their number of occurrences; README.md says what each array holds."""

    layout: Any
    counters: Tensor
    single: Tensor
    few: Tensor
    many: Tensor
    grouped: Tensor
    crowd: Tensor
    single_share: Tensor | None = None
    grouped_share: Tensor | None = None
    crowd_share: Tensor | None = None


def _refuse_too_many(layout: Any) -> None:
    """Raise if places in the lists of a batch would not fit beside the mark of rows with many occurrences."""
    size = layout.sizes
    if max(layout.most, layout.chunks * size.chunk) > of.MANY:
        possible = int(of.MANY / (size.chunk / (size.few + 1) + 1))
        raise ValueError(
            f"a batch of {layout.batch} rows has {layout.most} ids whose gradients are to be grouped by row, and about "
            f"{possible} are possible on a GPU; take smaller batches, or spread the tables over several collections"
        )


def group_rows(
    values: Tensor,
    layout: Any,
    places: Tensor,
    bases: Tensor,
    bag_of: Tensor,
    scales: Tensor | None = None,
    weights: Tensor | None = None,
) -> RowGroups:
    """Group the occurrences of ids `values` by row. `places` must be zeros, and is so again afterwards."""
    _refuse_too_many(layout)
    size, n, m, shares = layout.sizes, layout.most, layout.chunks, scales is not None or weights is not None
    empty = partial(torch.empty, dtype=torch.int32, device=values.device)
    floats = partial(torch.empty, dtype=torch.float32, device=values.device)
    made = RowGroups(
        layout,
        torch.zeros(len(layout.classes), 4, dtype=torch.int32, device=values.device),
        *(empty(3, n), empty(4, n), empty(4, m), empty(n), empty(m * size.chunk)),
        *((floats(n), floats(n), floats(m * size.chunk)) if shares else (None, None, None)),
    )
    if not layout.programs:
        return made
    grid, slots = (layout.programs,), layout.programs * size.ids
    kept = empty(slots), empty(slots, dtype=torch.int16), empty(slots)
    firsts = empty(slots, dtype=torch.int16), empty(layout.programs)
    kind = {"IDS": size.ids, "FEATURES": len(layout.order), "STEPS": len(layout.order).bit_length()}
    read = layout.features, layout.first_programs, places, *kept
    weighing = {"SHARES": shares, "WEIGHTED": weights is not None}
    floating = next((part for part in (scales, weights) if part is not None), values)  # for the one that is not read
    given = bag_of, floating if scales is None else scales, floating if weights is None else weights
    turns = min(size.turns, layout.programs)
    count_occurrences[(triton.cdiv(layout.programs, turns) * turns,)](
        *(values, *read, *firsts, layout.programs, turns),
        **kind, BITS=size.ids.bit_length() - 1, num_warps=max(1, size.ids // 32 // 8),
    )  # fmt: skip
    bits = {"PART": size.part, "SHORT": size.part.bit_length(), "LONG": (size.part * size.few).bit_length()}
    list_rows[grid](
        *(*read, *firsts, *given, layout.lists, made.counters, made.single, made.single_share, made.few, made.many),
        *(layout.batch, n, m),
        **kind, FEW=size.few, CHUNK=size.chunk, **bits, **weighing, num_warps=1,
    )  # fmt: skip
    place_occurrences[grid](
        *(*read, *given, made.grouped, made.grouped_share, made.crowd, made.crowd_share, made.many),
        *(layout.batch, m),
        **kind, CHUNK=size.chunk, **weighing, num_warps=size.warps,
    )  # fmt: skip
    clear_places[(size.programs, 2 * len(layout.classes))](
        places, bases, layout.lists, made.counters, made.few, made.many, n, m, N=256
    )
    return made
