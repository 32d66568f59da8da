"""The rounding of reference.py on the GPU, equal to it bit for bit.

The eight numbers of a draw are made once and spread over eight columns. All of it is arithmetic of 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _draws(key, row, purpose, WIDTH: tl.constexpr):
    """Sixteen random bits for each of columns 0 … WIDTH - 1 of rows [n], uint32 [n, WIDTH]."""
    BLOCKS: tl.constexpr = (WIDTH + 7) // 8
    block = tl.zeros([row.shape[0], BLOCKS], tl.uint32) + tl.arange(0, BLOCKS)[None, :].to(tl.uint32)
    low, nought = block * 0 + row[:, None].to(tl.uint32), block * 0  # rows are fewer than 2**32
    last = nought + purpose[:, None].to(tl.uint32)
    a, b, c, d = tl.philox(key[:, None], low, nought, block, last)
    if WIDTH >= 8:
        words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
        draws = tl.interleave(words & 0xFFFF, words >> 16)
    else:
        column = tl.arange(0, WIDTH)[None, :]
        words = tl.where(column < 4, tl.where(column < 2, a, b), tl.where(column < 6, c, d))
        draws = tl.where(column % 2 == 0, words & 0xFFFF, words >> 16)
    return draws


@triton.jit
def _float16(size, draw):
    normal = ((size + (draw & 0x1FFF)) >> 13) - 0x1C000
    # (s << 16) >> k of the reference, for k = 126 - exponent: below 2**-14 that is at least 14
    shift = tl.minimum(tl.maximum(112 - (size >> 23).to(tl.int32), 0), 31).to(tl.uint32)
    tiny = (((((size & 0x7FFFFF) | 0x800000) << 2) >> shift) + draw) >> 16
    half = tl.where(size < 0x38800000, tiny, tl.minimum(normal, 0x7BFF))
    half = tl.where(size >= 0x477FF000, 0x7C00, half)
    return tl.where(size > 0x7F800000, 0x7E00, half)


@triton.jit
def _bfloat16(size, draw):
    half = tl.where(size >= 0x7F7F8000, 0x7F80, tl.minimum((size + draw) >> 16, 0x7F7F))
    return tl.where(size > 0x7F800000, 0x7FC0, half)


@triton.jit
def round_stochastic(x, key, row, purpose, HALF: tl.constexpr):
    """Numbers float32 [n, WIDTH] in a half type, up or down by chance; keys, rows and purposes (2 + step) are [n]."""
    draw = _draws(key, row, purpose, x.shape[1])
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    half = _float16(size, draw) if HALF == tl.float16 else _bfloat16(size, draw)
    return (((bits >> 16) & 0x8000) | half).to(tl.uint16).to(HALF, bitcast=True)
