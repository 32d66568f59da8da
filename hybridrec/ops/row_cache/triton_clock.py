"""Victims on the GPU: a hand goes round the slots, and takes those that were not used since it last passed.

A go of the hand has three launches: idle slots of every block are counted, one program adds up the counts, and the
slots that are taken list themselves. Which ones those are depends on nothing but the stamps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.row_cache.cache import RowCache, of


@triton.jit
def _idle(stamp, passed, block, landed, slots, SPARES: tl.constexpr, BLOCK: tl.constexpr):
    """The slots of a block, and whether the hand may take each."""
    slot = block * BLOCK + tl.arange(0, BLOCK)
    used = tl.load(stamp + slot, mask=slot < slots, other=0)
    idle = (slot < slots) & (used <= landed)
    if SPARES:
        idle = idle & (used <= tl.load(passed + block))
    return slot, idle


@triton.jit
def _ahead(passing, blocks, SPARES: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr):
    """How many victims are still to be found, and at how many blocks this go of the hand looks."""
    left = (tl.load(passing + of.WANTED) - tl.load(passing + of.TAKEN)).to(tl.int32)
    window = blocks
    if SPARES:
        window = tl.minimum(blocks, tl.cdiv(SPAN * left, BLOCK) + 1)
    return left, tl.where(left > 0, window, 0)


@triton.jit
def count_idle(
    stamp, passed, lasting, passing,
    counts,  # int32 [blocks]: idle slots of each block, from the hand on
    slots, blocks,
    SPARES: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """A program has every so many blocks."""
    window = _ahead(passing, blocks, SPARES, BLOCK, SPAN)[1]
    landed, hand = tl.load(passing + of.IDLE).to(tl.int32), tl.load(lasting + of.HAND).to(tl.int32)
    for number in range(tl.program_id(0), window, tl.num_programs(0)):
        idle = _idle(stamp, passed, (hand + number) % blocks, landed, slots, SPARES, BLOCK)[1]
        tl.store(counts + number, tl.sum(idle.to(tl.int32)))


@triton.jit
def add_up(
    lasting, passing, counts,
    before,  # int32 [blocks]: idle slots of the blocks before each
    blocks,
    SPARES: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """One program: where the victims of each block are listed, and where the hand is afterwards."""
    left, window = _ahead(passing, blocks, SPARES, BLOCK, SPAN)
    hand, taken = tl.load(lasting + of.HAND), tl.load(passing + of.TAKEN)
    total, swept = 0, 0
    for first in range(0, window, SUMS):
        number = first + tl.arange(0, SUMS)
        there = number < window
        count = tl.load(counts + number, mask=there, other=0)
        earlier = total + tl.cumsum(count) - count
        tl.store(before + number, earlier, mask=there)
        swept += tl.sum((there & (earlier < left) & (earlier + count <= left)).to(tl.int32))
        total += tl.sum(count)
    tl.debug_barrier()  # every thread has read what is written now
    tl.store(passing + of.FROM, hand)
    tl.store(passing + of.WINDOW, window)
    tl.store(passing + of.BEFORE, taken)
    tl.store(passing + of.LEFT, left)
    tl.store(passing + of.TAKEN, taken + tl.minimum(total, left))
    tl.store(lasting + of.HAND, (hand + swept) % blocks)


@triton.jit
def take_idle(
    stamp, passed, lasting, passing, before,
    victims,  # int32 [most]
    slots, blocks,
    SPARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first idle slots go on the list, and are stamped as used; the blocks that the hand is through with, too."""
    hand, window = tl.load(passing + of.FROM).to(tl.int32), tl.load(passing + of.WINDOW).to(tl.int32)
    left, first = tl.load(passing + of.LEFT).to(tl.int32), tl.load(passing + of.BEFORE)
    now, landed = tl.load(lasting + of.NOW).to(tl.int32), tl.load(passing + of.IDLE).to(tl.int32)
    for number in range(tl.program_id(0), window, tl.num_programs(0)):
        earlier = tl.load(before + number)
        if earlier < left:
            block = (hand + number) % blocks
            slot, idle = _idle(stamp, passed, block, landed, slots, SPARES, BLOCK)
            count = tl.sum(idle.to(tl.int32))
            at = earlier + tl.cumsum(idle.to(tl.int32)) - 1
            taken = idle & (at < left)
            tl.store(victims + first + at, slot, mask=taken)
            tl.store(stamp + slot, now, mask=taken)
            if earlier + count <= left:
                tl.store(passed + block, now)


def choose(cache: RowCache, victims: Tensor) -> None:
    """Slots for the rows on the list go to `victims` int32 [most], as many as are wanted and can be had."""
    sizes, blocks, device = cache.sizes, len(cache.passed), cache.stamp.device
    counts, before = torch.empty(2, blocks, dtype=torch.int32, device=device)
    state = cache.stamp, cache.passed, cache.lasting, cache.passing
    bounds = cache.slots, blocks
    programs = min(sizes.programs, blocks)
    for spares in (True, False):
        kind = {"SPARES": spares, "BLOCK": sizes.block}
        count_idle[(programs,)](*state, counts, *bounds, **kind, SPAN=sizes.span)
        add_up[(1,)](cache.lasting, cache.passing, counts, before, blocks, **kind, SPAN=sizes.span, SUMS=sizes.sums)
        take_idle[(programs,)](*state, before, victims, *bounds, **kind)
