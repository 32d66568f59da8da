"""Pooling by max on the GPU, and the gradients of its ids.

The forward keeps for each number of the output which id of the bag it came from. At the step these winners spread the
gradient of the output over the ids, which are then summed by row as the ids of sequences are.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import TYPES, of
from hybridrec.ops.pooled_lookup import triton as pooling


@triton.jit
def pool_max(
    values,  # int64 [N]
    offsets,  # int64 [R, B + 1]
    weights,  # float32 [N], if WEIGHTED
    features,  # int64 [M, LENGTH]: lines of max
    out,  # float32 [B, width]
    winners,  # int32, if TRAIN: of each number the place in its bag that it came from, -1 where the bag is empty
    faults,  # int64 [F], as declared: gets an id that is outside the table
    first,
    batch,
    blocks,
    ROW: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BAGS: tl.constexpr,
    ALIGN: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TRAIN: tl.constexpr,
):
    """Bags [BAGS] of one feature; of equal numbers the first wins, and NaN is larger than any."""
    program = tl.program_id(0)
    line = features + (first + program // blocks) * of.LENGTH
    rows = tl.multiple_of(tl.load(line + of.ROWS).to(tl.pointer_type(ROW)), 16 if ALIGN > 1 else 1)
    size, fault = tl.load(line + of.SIZE), faults + tl.load(line + of.NUMBER)
    bags = ((program % blocks) * BAGS + tl.arange(0, BAGS)).to(tl.int64)
    columns, live = tl.arange(0, WIDTH), bags < batch
    begin, length = pooling.bag_ends(line, offsets, tl.load(line + of.START), bags, live, batch)
    best = tl.zeros([BAGS, WIDTH], tl.float32)
    won = tl.full([BAGS, WIDTH], -1, tl.int32)
    wrong = tl.zeros([BAGS], tl.int64)
    for j in range(0, tl.max(length)):
        there = length > j
        x, _, bad = pooling.rows_at(values, weights, rows, begin + j, there, of.SUM, size, columns, D, WEIGHTED)
        wrong = tl.where(bad != 0, bad, wrong)
        better = there[:, None] & ((won < 0) | (x > best) | ((x != x) & (best == best)))
        best = tl.where(better, x, best)
        won = tl.where(better, j, won).to(tl.int32)  # the loop counts in int64
    tl.store(fault + bags * 0, wrong, mask=wrong != 0)  # of several, any one
    column, stride = tl.multiple_of(tl.load(line + of.COLUMN), ALIGN), tl.multiple_of(tl.load(line + of.STRIDE), ALIGN)
    inside = live[:, None] & (columns[None, :] < D)
    tl.store(out + bags[:, None] * stride + column + columns[None, :], best, mask=inside)
    if TRAIN:
        kept = winners + tl.multiple_of(tl.load(line + of.WINNERS), ALIGN) + bags[:, None] * D + columns[None, :]
        tl.store(kept, won, mask=inside)


@triton.jit
def spread_max(
    offsets,
    features,  # int64 [M, LENGTH]: lines of max
    grad,  # float32 [B, width]
    winners,
    out,  # float32: the gradient of each id before its weight
    first,
    batch,
    blocks,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BAGS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """An id gets the gradient in the columns that it won, and zeros in others."""
    program = tl.program_id(0)
    line = features + (first + program // blocks) * of.LENGTH
    bags = ((program % blocks) * BAGS + tl.arange(0, BAGS)).to(tl.int64)
    columns, live = tl.arange(0, WIDTH), bags < batch
    begin, length = pooling.bag_ends(line, offsets, 0, bags, live, batch)
    column, stride = tl.multiple_of(tl.load(line + of.COLUMN), ALIGN), tl.multiple_of(tl.load(line + of.STRIDE), ALIGN)
    inside = live[:, None] & (columns[None, :] < D)
    g = tl.load(grad + bags[:, None] * stride + column + columns[None, :], mask=inside, other=0.0)
    kept = winners + tl.multiple_of(tl.load(line + of.WINNERS), ALIGN) + bags[:, None] * D + columns[None, :]
    won = tl.load(kept, mask=inside, other=-1)
    out += tl.multiple_of(tl.load(line + of.OCCURRENCES), ALIGN)
    for j in range(0, tl.max(length)):
        to = out + (begin + j)[:, None] * D + columns[None, :]
        tl.store(to, tl.where(won == j, g, 0.0), mask=inside & (length[:, None] > j))


def largest(
    values: Tensor, offsets: Tensor, weights: Tensor | None, layout: Any, flat: Tensor, faults: Tensor, train: bool
) -> Tensor | None:
    """Write the features pooled by max into the pooled output; the winners, if there are such features and `train`."""
    if not len(layout.maxima):
        return None
    winners = torch.empty(layout.winners if train else 0, dtype=torch.int32, device=values.device)
    given = values, offsets, values if weights is None else weights, layout.maxima, flat, winners, faults
    for each, grid, place, shape in _launches(layout):
        kind = {"ROW": TYPES[each.dtype], "WEIGHTED": weights is not None, "TRAIN": train}
        pool_max[grid](*given, *place, **shape, **kind, num_warps=2)
    return winners if train else None


def occurrence_gradients(offsets: Tensor, layout: Any, flat: Tensor, winners: Tensor) -> Tensor:
    """The gradients of all ids of max, feature after feature as the layout has them, before their weights."""
    made = torch.empty(layout.occurrences, device=flat.device)
    for _, grid, place, shape in _launches(layout):
        spread_max[grid](offsets, layout.maxima, flat, winners, made, *place, **shape, num_warps=2)
    return made


def _launches(layout: Any) -> list[tuple[Any, tuple[int], tuple[int, int, int], dict[str, int]]]:
    """Per class with features of max: the class, the grid, where the programs are, and the shape of a program."""
    made = []
    for each in layout.classes:
        first, last = each.maxima
        bags = max(1, pooling.ELEMENTS // each.width)
        blocks = triton.cdiv(layout.batch, bags)
        shape = {"D": each.dim, "WIDTH": each.width, "BAGS": bags, "ALIGN": each.align}
        if (last - first) * blocks:
            made.append((each, ((last - first) * blocks,), (first, layout.batch, blocks), shape))
    return made
