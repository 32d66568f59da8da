"""The gradient of the weights of ids on the GPU: of each id its row times the gradient of its bag.

A program has a few bags of one feature, reads their gradients once, and goes through their ids as the lookup did.
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
def weigh_bags(
    values,  # int64 [N]
    offsets,  # int64 [R, B + 1]
    weights,  # float32 [N]
    features,  # int64 [F, LENGTH], or the lines of max
    scales,  # float32 [F, B]: what bags were multiplied by
    winners,  # int32, if MAX
    pooled,  # float32: the output
    grad,  # float32: its gradient; the first number has the place `shift`
    result,  # float32 [N]
    first,
    batch,
    blocks,
    shift,
    ROW: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BAGS: tl.constexpr,
    ALIGN: tl.constexpr,
    MAX: tl.constexpr,
):
    """With y the output and s the scale: sum g·x, mean s (g·x - g·y), sqrtn s (g·x - s w g·y), max where it won."""
    program = tl.program_id(0)
    feature = first + program // blocks
    line = features + feature * of.LENGTH
    rows = tl.multiple_of(tl.load(line + of.ROWS).to(tl.pointer_type(ROW)), 16 if ALIGN > 1 else 1)
    size, combiner = tl.load(line + of.SIZE), tl.load(line + of.COMBINER)
    bags = ((program % blocks) * BAGS + tl.arange(0, BAGS)).to(tl.int64)
    columns, live = tl.arange(0, WIDTH), bags < batch
    begin, length = pooling.bag_ends(line, offsets, tl.load(line + of.START), bags, live, batch)
    column, stride = tl.multiple_of(tl.load(line + of.COLUMN), ALIGN), tl.multiple_of(tl.load(line + of.STRIDE), ALIGN)
    inside = live[:, None] & (columns[None, :] < D)
    place = bags[:, None] * stride + column - shift + columns[None, :]
    g = tl.load(grad + place, mask=inside, other=0.0)
    scale = tl.full([BAGS, 1], 1.0, tl.float32)
    along = tl.zeros([BAGS, 1], tl.float32)
    if combiner > 0:  # mean or sqrtn
        y = tl.load(pooled + place, mask=inside, other=0.0)
        along = tl.sum(g * y, 1)[:, None] / tl.load(line + of.GROUP).to(tl.float32)
        scale = tl.load(scales + feature.to(tl.int64) * batch + bags, mask=live, other=0.0)[:, None]
    if MAX:
        kept = winners + tl.multiple_of(tl.load(line + of.WINNERS), ALIGN) + bags[:, None] * D + columns[None, :]
        won = tl.load(kept, mask=inside, other=-1)
    longest = tl.max(length)
    for start in range(0, longest, WIDTH):
        found = tl.zeros([BAGS, WIDTH], tl.float32)  # g·x of as many ids as a row has numbers: a column for each
        for j in range(start, tl.minimum(start + WIDTH, longest)):
            id = tl.load(values + begin + j, mask=length > j, other=0)
            known = (length > j) & (id >= 0) & (id < size)
            read = known[:, None] & (columns[None, :] < D)
            x = tl.load(rows + id[:, None] * D + columns[None, :], mask=read, other=0.0)
            product = g * x.to(tl.float32)
            if MAX:
                product = tl.where(won == j, product, 0.0)
            found = tl.where(columns[None, :] == j - start, tl.sum(product, 1)[:, None], found)
        places = begin[:, None] + start + columns[None, :]
        there = start + columns[None, :] < length[:, None]
        weight = tl.load(weights + places, mask=there, other=0.0)
        away = tl.where(combiner == of.SQRTN, along * scale * weight, along)
        tl.store(result + places, scale * (found - away), mask=there)


def weight_gradient(looked: Any, pooled: Tensor) -> Tensor:
    """The gradients of the weights of a lookup's ids, from the rows as they are now; zeros for ids not looked up."""
    layout, block, flat = looked.layout, looked.block, looked.flat
    result = torch.zeros_like(looked.weights)
    given = block.values, block.offsets, looked.weights
    scales = pooled if looked.scales is None else looked.scales
    winners = block.values if looked.winners is None else looked.winners
    for each in layout.classes:
        bags = max(1, pooling.ELEMENTS // each.width)
        shape = {"ROW": TYPES[each.dtype], "D": each.dim, "WIDTH": each.width, "BAGS": bags, "ALIGN": each.align}
        first, last = each.maxima
        parts = [(flat, layout.features, each.first, each.pooled, layout.batch, 0, False)]
        parts += [(flat, layout.maxima, first, last - first, layout.batch, 0, True)]
        for grad, (place, count, begin) in zip(looked.sequences, layout.sequences, strict=True):
            if each.first <= place < each.last:
                parts.append((grad, layout.features, place, 1, count, begin, False))
        for grad, lines, first, features, batch, shift, of_max in parts:
            blocks = triton.cdiv(batch, bags)
            if grad is not None and features * blocks:
                to = scales, winners, pooled, grad, result, first, batch, blocks, shift
                weigh_bags[(features * blocks,)](*given, lines, *to, **shape, MAX=of_max, num_warps=2)
    return result
