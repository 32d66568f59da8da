"""Rows of both tiers on the GPU, where cold ones are packed: exchanged, read and written as packing.py has it.

The card has float32 rows. The host has them in a half type, [places, D], or as bytes of int8, [places, ROW]: a scale,
then the numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridrec.ops.philox import triton as philox
from hybridrec.ops.row_cache.cache import of
from hybridrec.ops.row_cache.packing import of as packed


@triton.jit
def _at(cold, place, mask, columns, ROW: tl.constexpr):
    """Where the numbers [N, WIDTH] of places int64 [N] are, and which there are: of int8, whole words of them."""
    begin: tl.constexpr = packed.SCALE if cold.dtype.element_ty == tl.int8 else 0
    return cold + place[:, None] * ROW + begin + columns[None, :], mask[:, None] & (columns[None, :] < ROW - begin)


@triton.jit
def _scales_at(cold, place, ROW: tl.constexpr):
    return (cold + place * ROW).to(tl.pointer_type(tl.float32))


@triton.jit
def _unpacked(cold, place, mask, columns, ROW: tl.constexpr):
    """The rows float32 [N, WIDTH] of places [N], zeros outside."""
    at, inside = _at(cold, place, mask, columns, ROW)
    x = tl.load(at, mask=inside, other=0).to(tl.float32)
    if cold.dtype.element_ty == tl.int8:
        x *= tl.load(_scales_at(cold, place, ROW), mask=mask, other=0.0)[:, None]  # exact
    return x


@triton.jit
def _scale(largest, some):
    """The scales float32 [N] of rows whose largest numbers have these bits; `some` is added before bits are cut."""
    divisor = (largest * 0 + packed.MOST).to(tl.float32)
    bits = tl.div_rn(largest.to(tl.float32, bitcast=True), divisor).to(tl.int32, bitcast=True)
    bits = tl.minimum((bits + some) & ~packed.CUT, packed.LARGEST)
    bits = tl.where(bits < packed.LEAST, 0, bits)
    return tl.where(largest >= packed.INFINITE, packed.NAN, bits).to(tl.float32, bitcast=True)


@triton.jit
def _scaled(x, draw, DRAWN: tl.constexpr):
    """The numbers int8 [N, WIDTH] of rows, and their scales [N]; columns that are none are 0, and so is their draw."""
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # as integers they are in the same order, and NaN above all
    largest = tl.max(size, 1)
    if DRAWN:
        some = tl.sum(draw, 1) & packed.CUT
    else:
        some = largest * 0 + (packed.CUT + 1) // 2
    scale = _scale(largest, some)
    there = (scale > 0)[:, None]
    numbers = tl.div_rn(x, tl.where(there, scale[:, None], 1.0))
    if DRAWN:
        below = tl.floor(numbers)
        numbers = below + ((((numbers - below) * 65536).to(tl.int32) + draw) >> 16).to(tl.float32)
    else:
        numbers = (numbers + 12582912.0) - 12582912.0  # 3 * 2**22: what is left is rounded to nearest even
    numbers = tl.minimum(tl.maximum(numbers, -packed.MOST), packed.MOST)
    numbers = tl.where(size == largest[:, None], tl.where(x < 0, -packed.MOST, packed.MOST), numbers)
    return tl.where(there, numbers, 0.0).to(tl.int8), scale


@triton.jit
def _pack(x, cold, place, mask, columns, key, purpose, D: tl.constexpr, ROW: tl.constexpr, DRAWN: tl.constexpr):
    """Rows float32 [N, WIDTH], zeros where there is no column, go to places [N]: to nearest, or by chance."""
    keys, purposes, nought = place * 0 + key, place * 0 + purpose, place * 0
    at, inside = _at(cold, place, mask, columns, ROW)
    if cold.dtype.element_ty == tl.int8:
        draw = 0
        if DRAWN:
            draw = philox.draws(keys, place, purposes, nought, x.shape[1], False).to(tl.int32)
            draw = tl.where(columns[None, :] < D, draw, 0)
        numbers, scale = _scaled(x, draw, DRAWN)
        tl.store(_scales_at(cold, place, ROW), scale, mask=mask)
        tl.store(at, numbers, mask=inside)
    else:
        half: tl.constexpr = cold.dtype.element_ty
        if DRAWN:
            tl.store(at, philox.round_stochastic(x, keys, place, purposes, nought, half, False), mask=inside)
        else:
            tl.store(at, philox.round_nearest(x, half), mask=inside)


@triton.jit
def exchange_packed(
    hot,  # float32 [slots, D]
    cold,  # [places, ROW], on the host
    places,  # int32 [most]
    victims,  # int32 [most]: slots
    lasting, passing,
    key,
    D: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows in slots and rows in places change over, [N] at a time; nothing where the admission is refused."""
    total = tl.where(tl.load(passing + of.REFUSES) != 0, 0, tl.load(passing + of.WANTED)).to(tl.int32)
    columns, purpose = tl.arange(0, WIDTH), tl.load(lasting + of.NOW) + 2
    for first in range(tl.program_id(0) * N, total, tl.num_programs(0) * N):
        i = first + tl.arange(0, N)
        mask = i < total
        slot = tl.load(victims + i, mask=mask, other=0).to(tl.int64)
        place = tl.load(places + i, mask=mask, other=0).to(tl.int64)
        inside = mask[:, None] & (columns[None, :] < D)
        of_slot = hot + slot[:, None] * D + columns[None, :]
        comes, goes = _unpacked(cold, place, mask, columns, ROW), tl.load(of_slot, mask=inside, other=0.0)
        tl.debug_barrier()  # no thread may load what another has already exchanged
        tl.store(of_slot, comes, mask=inside)
        _pack(goes, cold, place, mask, columns, key, purpose, D, ROW, True)


@triton.jit
def _where(directory, rows, i, n, count):
    """The slots and the places int64 of rows [N], and which of the two has each."""
    row = tl.load(rows + i, mask=i < n, other=-1)
    known = (row >= 0) & (row < count)
    entry = tl.load(directory + row, mask=known, other=0).to(tl.int64)
    return tl.where(entry >= 0, entry, 0), tl.where(entry < 0, -1 - entry, 0), known & (entry >= 0), entry < 0


@triton.jit
def read_packed(
    hot, cold, directory, rows,
    out,  # float32 [n, D]
    n, count,
    D: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows [N] of any tier; zeros where there is none."""
    i, columns = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, WIDTH)
    slot, place, is_hot, is_cold = _where(directory, rows, i, n, count)
    inside = columns[None, :] < D
    x = tl.load(hot + slot[:, None] * D + columns[None, :], mask=is_hot[:, None] & inside, other=0.0)
    x = tl.where(is_cold[:, None], _unpacked(cold, place, is_cold, columns, ROW), x)
    tl.store(out + i[:, None] * D + columns[None, :], x, mask=(i < n)[:, None] & inside)


@triton.jit
def write_packed(
    hot, cold, directory, rows,
    values,  # float32 [n, D]
    n, count,
    D: tl.constexpr, ROW: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Different rows [N] of any tier get these values, cold ones the nearest that can be kept."""
    i, columns = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, WIDTH)
    slot, place, is_hot, is_cold = _where(directory, rows, i, n, count)
    inside = columns[None, :] < D
    x = tl.load(values + i[:, None] * D + columns[None, :], mask=(i < n)[:, None] & inside, other=0.0)
    tl.store(hot + slot[:, None] * D + columns[None, :], x, mask=is_hot[:, None] & inside)
    _pack(x, cold, place, is_cold, columns, 0, 0, D, ROW, False)
