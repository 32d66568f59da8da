"""A sort of the few numbers that a program has in its registers.

It is the network of `tl.sort`, with one comparison and one choice for each number of a step: `tl.sort` needs three
operations where only a thread's place says which of two numbers it keeps.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _side(DIMS: tl.constexpr, bit: tl.constexpr):
    """0 or 1, as the bit of a number's place is; the places of 2**DIMS numbers are corners of a cube."""
    return tl.reshape(tl.arange(0, 2), [1] * (DIMS - bit - 1) + [2] + [1] * bit)


@triton.jit
def _exchange(x, DIMS: tl.constexpr, bit: tl.constexpr, stage: tl.constexpr):
    """Of numbers whose places differ in one bit, the smaller goes where it is 0: or where it is 1, by a higher bit."""
    other = x ^ tl.xor_sum(x, DIMS - 1 - bit, True)
    larger = _side(DIMS, bit) != (_side(DIMS, stage) if stage < DIMS else 0)
    return tl.where((x > other) != larger, other, x)


@triton.jit
def ascending(x, DIMS: tl.constexpr):
    """Different integers [2**DIMS], sorted."""
    cube = tl.reshape(x, [2] * DIMS)
    for stage in tl.static_range(1, DIMS + 1):
        for step in tl.static_range(stage):
            cube = _exchange(cube, DIMS, stage - 1 - step, stage)
    return tl.reshape(cube, x.shape)
