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

ROWS = 16  # whose sums a program has in registers
NUMBERS = 512  # of gradients that a program has in hand; wider rows are grouped
TILES = 16  # of ids, for each program


@triton.jit
def _either(a, b):
    return a | b


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
    IDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Programs (feature and block of ids, rows of its table): tiles of IDS ids, every `blocks`-th of the feature."""
    feature, block = tl.load(lines + first + tl.program_id(0) % count), tl.program_id(0) // count
    line = features + feature * of.LENGTH
    start, end, size = tl.load(line + of.START), tl.load(line + of.COUNT).to(tl.int32), tl.load(line + of.SIZE)
    low = tl.program_id(1) * ROWS
    if low < size:
        which, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
        total = tl.zeros([ROWS, IDS, WIDTH], tl.float32)
        seen = tl.zeros([IDS], tl.int32)
        for begin in range(block * IDS, end, blocks * IDS):
            i = begin + tl.arange(0, IDS)
            id = tl.load(values + start + i, mask=i < end, other=-1)
            mine = (id >= low) & (id < low + ROWS) & (id < size)
            row = tl.where(mine, id - low, 0).to(tl.int32)
            at, share = groups.gradient_of(
                line, feature, start, i, mine, bag_of, scales, weights, batch, SHARES, WEIGHTED
            )
            g = update.gradients_at(grad, at, share, mine, columns, D, ALIGN, SHARES)  # zeros where it is not mine
            total += tl.where(row[None, :, None] == which[:, None, None], g[None, :, :], 0.0)
            seen |= tl.where(mine, 1 << row, 0)
        met = ((tl.reduce(seen, 0, _either) >> which) & 1) == 1
        tl.store(places + tl.load(line + of.BASE) + low + which, tl.full([ROWS], 1, tl.int32), mask=met)
        to = sums + (tl.load(line + of.SUMS) + low + which)[:, None] * D + columns[None, :]
        tl.atomic_add(to, tl.sum(total, 1), mask=met[:, None] & (columns[None, :] < D), sem="relaxed")


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
        D=each.dim, WIDTH=each.width, ALIGN=each.align, IDS=ids, ROWS=ROWS, num_warps=4,
        SHARES=scales is not None or weights is not None, WEIGHTED=weights is not None,
    )  # fmt: skip
