"""What a row holds when it begins: values drawn by its id, and the fill of each state.

Who gives slots to ids of a table goes over the columns of their rows at once. Slots are a column before branches and
loops begin: Triton 3.6 cannot lay out one that a loop makes of a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridrec.ops.hash_rows.lines import home_of
from hybridrec.ops.philox import initial_triton


@triton.jit
def _float(line, which):
    """The number whose bits stand in a line."""
    return tl.load(line + which).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _rows(address, TYPE: tl.constexpr, FOURS: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(TYPE)), 16 if FOURS else 1)


@triton.jit
def _put(home, dim, slot, columns, value, FOURS: tl.constexpr):
    """Values float32 [N, C] of columns [C] to the rows of slots [N, 1], in the type of their table.

    FOURS says that columns come by four, and that four numbers of any row can be stored at once.
    """
    kind, address = tl.load(home + home_of.TYPE), tl.load(home + home_of.ROWS)
    if FOURS:  # the same number; now the compiler sees what it is a multiple of
        dim = dim // 4 * 4
    to = slot * dim + columns[None, :]
    inside = (slot >= 0) & (columns >= 0)[None, :] & (columns < dim)[None, :]
    if kind == home_of.FLOAT32:
        tl.store(_rows(address, tl.float32, FOURS) + to, value, mask=inside)
    elif kind == home_of.FLOAT16:
        tl.store(_rows(address, tl.float16, FOURS) + to, value.to(tl.float16), mask=inside)
    else:
        tl.store(_rows(address, tl.int16, FOURS) + to, initial_triton._bfloat16(value), mask=inside)


@triton.jit
def _words(home, id, block, purpose, WIDE: tl.constexpr):
    """Four words of each counter [N, WIDE] of ids [N, 1]."""
    key = tl.load(home + home_of.KEY)
    zeros = tl.zeros([id.shape[0], WIDE], tl.uint32)
    low, high = zeros + id.to(tl.uint32), zeros + (id >> 32).to(tl.uint32)
    block = zeros + block[None, :].to(tl.uint32)
    return initial_triton._philox(
        low, high, block, zeros + purpose, zeros + key.to(tl.uint32), zeros + (key >> 32).to(tl.uint32)
    )


@triton.jit
def _uniform(home, id, slot, skip, FOURS: tl.constexpr, WIDE: tl.constexpr):
    """Four values of a counter; the first one of a row passes over `skip`. WIDE counters of it are drawn at a time."""
    factor = _float(home, home_of.FACTOR)
    dim, column = tl.load(home + home_of.DIM), tl.load(home + home_of.COLUMN)
    for first in range(0, tl.cdiv(skip + dim, 4), WIDE):
        a, b, c, d = _words(home, id, column // 4 + first + tl.arange(0, WIDE), 0, WIDE)
        whole = (tl.interleave(tl.interleave(a, c), tl.interleave(b, d)) >> 8).to(tl.int32) - 8388608
        _put(home, dim, slot, first * 4 + tl.arange(0, 4 * WIDE) - skip, whole.to(tl.float32) * factor, FOURS)


@triton.jit
def _draw(home, id, slot, WIDE: tl.constexpr):
    """The initial values of ids [N, 1], by the counters of ../philox/README.md."""
    factor, kind = _float(home, home_of.FACTOR), tl.load(home + home_of.INIT)
    dim, column = tl.load(home + home_of.DIM), tl.load(home + home_of.COLUMN)
    if kind == home_of.UNIFORM:
        if ((dim | column) % 4 == 0) & (tl.load(home + home_of.ROWS) % 16 == 0):
            _uniform(home, id, slot, 0, True, WIDE)  # a thread has all of a counter: nothing goes to another one
        else:
            _uniform(home, id, slot, column % 4, False, WIDE // 2)
    else:
        for first in range(0, dim, WIDE):
            value = tl.zeros([id.shape[0], WIDE], tl.float32) + factor
            if kind == home_of.NORMAL:
                a, b, c, d = _words(home, id, column + first + tl.arange(0, WIDE), 1, WIDE)
                halves = initial_triton._halves(a) + initial_triton._halves(b)
                halves += initial_triton._halves(c) + initial_triton._halves(d)
                value = (halves - 262140).to(tl.float32) * factor
            _put(home, dim, slot, first + tl.arange(0, WIDE), value, False)


@triton.jit
def _fill(state, slot, WIDE: tl.constexpr):
    """The fill of a state [slots, width] for the rows of slots [N, 1]."""
    width, fill = tl.load(state + 1), _float(state, 2)
    to = tl.load(state).to(tl.pointer_type(tl.float32))
    for first in range(0, width, WIDE):
        columns = first + tl.arange(0, WIDE)
        value = tl.zeros([slot.shape[0], WIDE], tl.float32) + fill
        tl.store(to + slot * width + columns[None, :], value, mask=(slot >= 0) & (columns < width)[None, :])


@triton.jit
def begin_rows(homes, table, id, slot, WIDE: tl.constexpr):
    """The rows of ids [N] of a table that have got these slots; a negative one says that none begins.

    WIDE counters of a row are in hand at a time, an even number: with two, uniform values are written by whole sectors.
    More would take registers of those who wait for an index.
    """
    if tl.max(slot) >= 0:
        home = homes + table * home_of.LENGTH
        _draw(home, id[:, None], slot[:, None], WIDE)
        for number in tl.static_range(2):
            _fill(home + home_of.STATES + number * home_of.STATE, slot[:, None], 2 * WIDE)
