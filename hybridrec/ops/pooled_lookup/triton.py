"""Pooled lookup on the GPU: one launch for all features whose rows have the same dimension and type.

A program pools a few bags of one feature. It reads rows and writes the output in vectors of 16 bytes where the
columns allow, and keeps the sums in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import TYPES, of
from hybridrec.ops.room import with_room

ELEMENTS = 512  # numbers that a program has in hand at a time; found best for dimensions 8 to 128
TOGETHER = 2  # ids of a bag whose rows are on their way at the same time


@triton.jit
def rows_at(values, weights, rows, at, there, combiner, size, columns, D: tl.constexpr, WEIGHTED: tl.constexpr):
    """The rows of ids at places [n] times their weights, [n, WIDTH]; what they add to the divisor of their bag; and the
    ids that are outside the table, 0 for others.
    """
    id = tl.load(values + at, mask=there, other=0)
    known = there & (id >= 0) & (id < size)
    wrong = tl.where(there & (id != of.NO_ID) & ((id < 0) | (id >= size)), id, 0)
    x = tl.load(rows + id[:, None] * D + columns[None, :], mask=known[:, None] & (columns[None, :] < D), other=0.0)
    x = x.to(tl.float32)
    weight = tl.full(known.shape, 1.0, tl.float32)
    if WEIGHTED:
        weight = tl.load(weights + at, mask=there, other=0.0)
        x = x * weight[:, None]
        weight = tl.where(combiner == of.SQRTN, weight * weight, weight)
    return x, weight, wrong


@triton.jit
def bag_ends(line, offsets, start, bags, live, batch):
    """Where the ids of bags [n] of a feature begin in the block, and how many there are."""
    hotness = tl.load(line + of.HOTNESS)
    if hotness >= 0:
        begin = bags * hotness
        length = tl.where(live, hotness, 0)
    else:
        ends = offsets + tl.load(line + of.LINE) * (batch + 1) + bags
        begin = tl.load(ends, mask=live, other=0)
        length = tl.load(ends + 1, mask=live, other=0) - begin
    return begin + start, length


@triton.jit
def pool_bags(
    values,  # int64 [N]
    offsets,  # int64 [R, B + 1]
    weights,  # float32 [N], if WEIGHTED
    features,  # int64 [F, LENGTH]
    out,  # float32; its first number has the place `shift`
    scales,  # float32 [F, B], if TRAIN: what a bag's gradient is multiplied by
    bag_of,  # int32 [N], if TRAIN: the bag of each id of a ragged feature
    faults,  # int64 [F], as declared: gets an id that is outside the table
    first,
    batch,
    blocks,
    shift,
    ROW: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    BAGS: tl.constexpr,
    ALIGN: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TRAIN: tl.constexpr,
    GROUPED: tl.constexpr,
    ONE: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Bags [BAGS] of one feature; WIDTH is D or the next power of two."""
    program = tl.program_id(0)
    feature = first + program // blocks
    line = features + feature * of.LENGTH
    rows = tl.multiple_of(tl.load(line + of.ROWS).to(tl.pointer_type(ROW)), 16 if ALIGN > 1 else 1)
    size, combiner = tl.load(line + of.SIZE), tl.load(line + of.COMBINER)
    start, hotness = tl.load(line + of.START), tl.load(line + of.HOTNESS)
    bags = (program % blocks) * BAGS + tl.arange(0, BAGS)
    live = bags < batch
    where = bags.to(tl.int64)
    columns, fault = tl.arange(0, WIDTH), faults + tl.load(line + of.NUMBER)
    if ONE:
        length = tl.where(live, 1, 0)
        sums, mass, wrong = rows_at(values, weights, rows, start + where, live, combiner, size, columns, D, WEIGHTED)
    else:
        begin, length = bag_ends(line, offsets, start, where, live, batch)
        sums = tl.zeros([BAGS, WIDTH], tl.float32)
        mass = tl.zeros([BAGS], tl.float32)
        wrong = tl.zeros([BAGS], tl.int64)
        for j in range(0, tl.max(length), TOGETHER):
            for k in tl.static_range(TOGETHER):
                at, there = begin + j + k, length > j + k
                row, weight, bad = rows_at(values, weights, rows, at, there, combiner, size, columns, D, WEIGHTED)
                sums += row
                mass += weight
                wrong = tl.where(bad != 0, bad, wrong)
        if TRAIN:
            if hotness < 0:
                for j in range(0, tl.max(length)):
                    tl.store(bag_of + begin + j, bags, mask=length > j)
    tl.store(fault + where * 0, wrong, mask=wrong != 0)  # of several, any one
    if not WEIGHTED:
        mass = length.to(tl.float32)
    if GROUPED:
        mass /= tl.load(line + of.GROUP).to(tl.float32)
    if combiner == of.SQRTN:
        mass = tl.sqrt(mass)
    scale = tl.where(mass == 0, 0.0, 1.0 / tl.where(mass == 0, 1.0, mass))
    divides = (combiner == of.MEAN) | (combiner == of.SQRTN)
    if divides:
        sums = sums * scale[:, None]
        if TRAIN:
            tl.store(scales + feature.to(tl.int64) * batch + where, scale, mask=live)
    column, stride = tl.multiple_of(tl.load(line + of.COLUMN), ALIGN), tl.multiple_of(tl.load(line + of.STRIDE), ALIGN)
    to = out + where[:, None] * stride + column - shift + columns[None, :]
    tl.store(to, sums, mask=live[:, None] & (columns[None, :] < D))


def pool(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    layout: Any,
    faults: Tensor,
    train: bool,
) -> tuple[Tensor, list[Tensor], Tensor, Tensor | None]:
    """The pooled features [B, width], the sequences [n, dim], and for the backward the bags of ids and their scales."""
    device = values.device
    flat = with_room(layout.batch, layout.width, layout.stride, device)
    sequences = [torch.empty(count, layout.dims[place], device=device) for place, count, _ in layout.sequences]
    bag_of = torch.empty(layout.ids if train and layout.ragged else 0, dtype=torch.int32, device=device)
    scales = torch.empty(len(layout.order), layout.batch, device=device) if train and layout.divides else None
    given = values, offsets, values if weights is None else weights, layout.features
    kept = values if scales is None else scales, bag_of, faults
    kind = {"WEIGHTED": weights is not None, "TRAIN": train, "GROUPED": layout.grouped}
    for each in layout.classes:
        row = TYPES[each.dtype]
        bags = max(1, ELEMENTS // each.width)
        shape = {"ROW": row, "D": each.dim, "WIDTH": each.width, "BAGS": bags, "ALIGN": each.align}
        shape["TOGETHER"] = TOGETHER
        parts = [(flat, each.first, each.ones, layout.batch, 0, True)]
        parts += [(flat, each.first + each.ones, each.pooled - each.ones, layout.batch, 0, False)]
        for out, (place, count, begin) in zip(sequences, layout.sequences, strict=True):
            if each.first <= place < each.last:
                parts.append((out, place, 1, count, begin, not layout.grouped))
        for out, first, features, batch, shift, one in parts:
            blocks = triton.cdiv(batch, bags)
            if features * blocks:
                grid = (features * blocks,)
                pool_bags[grid](*given, out, *kept, first, batch, blocks, shift, **shape, **kind, ONE=one, num_warps=2)
    return flat, sequences, bag_of, scales
