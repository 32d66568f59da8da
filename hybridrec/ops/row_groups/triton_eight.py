"""Eight numbers of each thread of a program, one by one.

A thread's neighbours, of which the compiler knows that they are its own, need no other thread; and tensors of one
number for each thread are read, written and counted without a change of their layout, which goes through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def eight(x, THREADS: tl.constexpr):
    """Numbers [8 * THREADS] as eight tensors [THREADS]: a thread has eight neighbours, one in each."""
    even, odd = tl.split(tl.reshape(x, [THREADS, 2, 2, 2]))
    x04, x26 = tl.split(even)
    x15, x37 = tl.split(odd)
    x0, x4 = tl.split(x04)
    x1, x5 = tl.split(x15)
    x2, x6 = tl.split(x26)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def joined(x, THREADS: tl.constexpr):
    """The inverse of `eight`."""
    even = tl.join(tl.join(x[0], x[4]), tl.join(x[2], x[6]))
    return tl.reshape(tl.join(even, tl.join(tl.join(x[1], x[5]), tl.join(x[3], x[7]))), [8 * THREADS])


@triton.jit
def abreast(x, THREADS: tl.constexpr):
    """Numbers [8 * THREADS] as eight tensors [THREADS], in which neighbours belong to neighbouring threads."""
    return eight(tl.reshape(tl.trans(tl.reshape(x, [8, THREADS])), [8 * THREADS]), THREADS)


@triton.jit
def in_line(x, THREADS: tl.constexpr):
    """The inverse of `abreast`."""
    return tl.reshape(tl.trans(tl.reshape(joined(x, THREADS), [THREADS, 8])), [8 * THREADS])
