"""Gradients summed by row where a table has few rows: nothing is grouped, the sums of all rows stay in registers.

A program reads the gradients of a run of ids once and in order. Programs meet only when they add their sums.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops import features as of
from hybridrec.ops.row_groups import triton as groups
from hybridrec.ops.row_update import triton as update

ROWS = 16  # whose sums a program has in registers, as the kernel spells them out
NUMBERS = 512  # of gradients that a program has in hand; wider rows are grouped
TILES = 32  # of ids, for each program, by fours


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _tile(
    values, line, feature, i, end, low, size, bag_of, scales, weights, grad, batch, columns,
    D: tl.constexpr, ALIGN: tl.constexpr, SHARES: tl.constexpr, WEIGHTED: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """The rows, from `low` on, of ids at places [n] of a feature, -1 for those that have none, and their gradients."""
    start, there = tl.load(line + of.START), i < end
    id = tl.load(values + start + i, mask=there, other=-1)
    known = (id >= low) & (id < size)
    if RAGGED:  # ids without a row may have no bag
        there = known
    at, share = groups.gradient_of(line, feature, start, i, there, bag_of, scales, weights, batch, SHARES, WEIGHTED)
    g = update.gradients_at(grad, at, share, there, columns, D, ALIGN, SHARES)
    return tl.where(known, id - low, -1).to(tl.int32), g


@triton.jit
def _plus(total, row, k: tl.constexpr, g, LIVE: tl.constexpr):
    """The sum of row k; the gradients of others may be anything."""
    return tl.where((row == k)[:, None], total + g, total) if k < LIVE else total


@triton.jit
def _added(sums, row, g, LIVE: tl.constexpr):
    """Sixteen sums [n, WIDTH], with the gradients of ids in that of their row. One by one they stay in registers."""
    return (
        _plus(sums[0], row, 0, g, LIVE),
        _plus(sums[1], row, 1, g, LIVE),
        _plus(sums[2], row, 2, g, LIVE),
        _plus(sums[3], row, 3, g, LIVE),
        _plus(sums[4], row, 4, g, LIVE),
        _plus(sums[5], row, 5, g, LIVE),
        _plus(sums[6], row, 6, g, LIVE),
        _plus(sums[7], row, 7, g, LIVE),
        _plus(sums[8], row, 8, g, LIVE),
        _plus(sums[9], row, 9, g, LIVE),
        _plus(sums[10], row, 10, g, LIVE),
        _plus(sums[11], row, 11, g, LIVE),
        _plus(sums[12], row, 12, g, LIVE),
        _plus(sums[13], row, 13, g, LIVE),
        _plus(sums[14], row, 14, g, LIVE),
        _plus(sums[15], row, 15, g, LIVE),
    )


@triton.jit
def _bits(row):
    """A bit for each row that is met."""
    return tl.where((row >= 0) & (row < 16), 1 << (row & 15), 0)


@triton.jit
def sum_rows(
    values,  # int64 [N]
    features,  # int64 [F, LENGTH]
    lines,  # int32: those of features whose tables have few rows
    places,  # int32 [rows of all tables], zeros: 1 where a row is met
    bag_of,  # int32 [N]: the bag of each id of a ragged feature
    scales,  # float32 [F, B], if SHARES
    weights,  # float32 [N], if WEIGHTED
    grad,  # float32
    sums,  # float32 [rows of the tables, D], zeros
    first,
    count,
    blocks,
    batch,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIGN: tl.constexpr,
    SHARES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    RAGGED: tl.constexpr,
    IDS: tl.constexpr,
    LIVE: tl.constexpr,
):
    """Programs (feature and block of ids, sixteen rows of its table): four tiles of IDS ids, then the next in turn."""
    feature, block = tl.load(lines + first + tl.program_id(0) % count), tl.program_id(0) // count
    line = of.line(features, feature)
    end, size = tl.load(line + of.COUNT).to(tl.int32), tl.load(line + of.SIZE)
    low = tl.program_id(1) * 16
    if low < size:
        columns, seen, zero = tl.arange(0, WIDTH), tl.zeros([IDS], tl.int32), tl.zeros([IDS, WIDTH], tl.float32)
        total = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
        for begin in range(block * IDS * 4, end, blocks * IDS * 4):
            i = begin + tl.arange(0, IDS)  # four tiles, whose gradients are on their way at the same time
            row_a, a = _tile(
                values, line, feature, i, end, low, size, bag_of, scales, weights, grad, batch, columns,
                D, ALIGN, SHARES, WEIGHTED, RAGGED,
            )  # fmt: skip
            row_b, b = _tile(
                values, line, feature, i + IDS, end, low, size, bag_of, scales, weights, grad, batch, columns,
                D, ALIGN, SHARES, WEIGHTED, RAGGED,
            )  # fmt: skip
            row_c, c = _tile(
                values, line, feature, i + 2 * IDS, end, low, size, bag_of, scales, weights, grad, batch, columns,
                D, ALIGN, SHARES, WEIGHTED, RAGGED,
            )  # fmt: skip
            row_d, d = _tile(
                values, line, feature, i + 3 * IDS, end, low, size, bag_of, scales, weights, grad, batch, columns,
                D, ALIGN, SHARES, WEIGHTED, RAGGED,
            )  # fmt: skip
            total = _added(_added(total, row_a, a, LIVE), row_b, b, LIVE)
            total = _added(_added(total, row_c, c, LIVE), row_d, d, LIVE)
            seen |= _bits(row_a) | _bits(row_b) | _bits(row_c) | _bits(row_d)
        met = tl.reduce(seen, 0, _either)
        place, at = tl.load(line + of.BASE) + low, tl.load(line + of.SUMS) + low
        for k in tl.static_range(LIVE):
            if (met >> k) & 1 == 1:
                tl.store(places + place + k, 1)
                tl.atomic_add(sums + (at + k) * D + columns, tl.sum(total[k], 0), mask=columns < D, sem="relaxed")


def sum_few_rows(
    values: Tensor,
    layout: Any,
    number: int,
    places: Tensor,
    grad: Tensor,
    sums: Tensor,
    bag_of: Tensor,
    scales: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    """Add the gradients of the tables of one class that have few rows to `sums`, and mark the rows in `places`."""
    each = layout.classes[number]
    few, ids = each.summed, max(1, NUMBERS // each.width)
    blocks = triton.cdiv(few.ids, ids * TILES)
    if not blocks:
        return
    floating = next((part for part in (scales, weights) if part is not None), values)  # for the one that is not read
    sum_rows[(few.features * blocks, triton.cdiv(few.most, ROWS))](
        *(values, layout.features, layout.summed, places, bag_of),
        *(floating if scales is None else scales, floating if weights is None else weights, grad, sums),
        *(few.first, few.features, blocks, layout.batch),
        D=each.dim, WIDTH=each.width, ALIGN=each.align, IDS=ids, RAGGED=layout.ragged,
        LIVE=min(ROWS, -(-few.most // 4) * 4), num_warps=4,
        SHARES=scales is not None or weights is not None, WEIGHTED=weights is not None,
    )  # fmt: skip
