"""The initial values of reference.py on the GPU, written straight into a table: nothing is allocated beside it.

A program makes the values of BLOCKS counters, which lie one after the other where the dimension is a multiple of four.
What is drawn goes by ids and columns of the whole table, also where a store holds a share of it.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.philox.part import ALL, Part
from hybridrec.ops.philox.reference import MASK, NORMAL_DEVIATION

BLOCKS = 256


@triton.jit
def _philox(a, b, c, d, low, high):
    """Four words of counters (a, b, c, d) under the key (low, high); all are uint32 of one shape."""
    for _ in tl.static_range(10):
        left = a.to(tl.uint64) * 0xD2511F53
        right = c.to(tl.uint64) * 0xCD9E8D57
        a, b = (right >> 32).to(tl.uint32) ^ b ^ low, right.to(tl.uint32)
        c, d = (left >> 32).to(tl.uint32) ^ d ^ high, left.to(tl.uint32)
        low += 0x9E3779B9
        high += 0xBB67AE85
    return a, b, c, d


@triton.jit
def _halves(word):
    """The sum of a word's halves."""
    return ((word & 0xFFFF) + (word >> 16)).to(tl.int32)


@triton.jit
def _bfloat16(value):
    """The bits of finite numbers rounded to nearest even, as int16."""
    bits = value.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)


@triton.jit(do_not_specialize=["count", "low", "high", "first_id", "stride", "first_block"])
def fill_rows(
    weight,  # [n, DIM]; the bits of bfloat16 as int16
    listed,  # int64 [count]: the rows to fill, where LISTED; else they are 0 … count - 1
    count,
    low,  # of the key, int32
    high,
    factor,  # float32, of the whole numbers drawn
    first_id,  # row r is that of id first_id + r * stride
    stride,
    first_block,  # of counters, in the whole row
    DIM: tl.constexpr,
    PER: tl.constexpr,  # counters of a row
    WIDE: tl.constexpr,  # values of a counter: 1 of a normal, 4 of a uniform distribution
    SKIP: tl.constexpr,  # values of the first counter, which are of columns before those that are here
    LISTED: tl.constexpr,
    HALF: tl.constexpr,
    BLOCKS: tl.constexpr,  # counters of a program
):
    """Grid: count * PER / BLOCKS."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    i = first + tl.arange(0, BLOCKS)
    row = i // PER
    block = (first_block + i % PER).to(tl.uint32)
    if LISTED:
        row = tl.load(listed + row, mask=row < count, other=0)
    id = first_id + row * stride
    zeros = tl.zeros([BLOCKS], tl.uint32)
    key_low, key_high = zeros + low.to(tl.uint32), zeros + high.to(tl.uint32)
    a, b, c, d = _philox(id.to(tl.uint32), (id >> 32).to(tl.uint32), block, zeros + WIDE % 4, key_low, key_high)
    if WIDE == 1:
        whole = _halves(a) + _halves(b) + _halves(c) + _halves(d) - 262140
    else:
        whole = (tl.interleave(tl.interleave(a, c), tl.interleave(b, d)) >> 8).to(tl.int32) - 8388608
    value = whole.to(tl.float32) * factor
    j = first * WIDE + tl.arange(0, BLOCKS * WIDE)
    row = j // (PER * WIDE)
    column = j % (PER * WIDE) - SKIP
    there = (row < count) & (column >= 0) & (column < DIM)
    if LISTED:
        row = tl.load(listed + row, mask=there, other=0)
    if HALF:
        tl.store(weight + row * DIM + column, _bfloat16(value), mask=there)
    else:
        tl.store(weight + row * DIM + column, value.to(weight.dtype.element_ty), mask=there)


def uniform_(weight: Tensor, key: int, scale: float, rows: Tensor | None = None, part: Part = ALL) -> None:
    """Give all rows [n, dim] of a part of a table, or those listed, int64, values drawn from [-scale, scale)."""
    _fill(weight, key, float(np.float32(scale * 2.0**-23)), 4, rows, part)


def normal_(weight: Tensor, key: int, std: float, rows: Tensor | None = None, part: Part = ALL) -> None:
    """Give all rows [n, dim] of a part of a table, or those listed, int64, values of standard deviation `std`."""
    _fill(weight, key, float(np.float32(std / NORMAL_DEVIATION)), 1, rows, part)


def _fill(weight: Tensor, key: int, factor: float, wide: int, rows: Tensor | None, part: Part) -> None:
    count, dim = len(weight) if rows is None else len(rows), weight.shape[1]
    block, skip = divmod(part.column, wide)
    per = -(-(skip + dim) // wide)
    half = weight.dtype == torch.bfloat16
    if not count:
        return
    with torch.cuda.device_of(weight):  # of nothing, on the CPU
        fill_rows[(triton.cdiv(count * per, BLOCKS),)](
            *(weight.view(torch.int16) if half else weight, weight if rows is None else rows, count),
            *(_signed(key & MASK), _signed(key >> 32), factor, part.first, part.stride, block),
            *(dim, per, wide, skip, rows is not None, half, BLOCKS),
        )


def _signed(word: int) -> int:
    """The word as int32, so that every key has one type."""
    return word - (word >> 31 << 32)
