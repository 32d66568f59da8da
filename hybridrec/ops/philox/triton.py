"""The rounding of reference.py on the GPU, equal to it bit for bit.

The eight numbers of a draw are made once and spread over eight columns. All of it is arithmetic of 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _words(key, id, block, purpose):
    """The four words of column blocks uint32 [n, k] of ids [n], of 32 bits or 64."""
    nought = block * 0
    low, high = nought + id[:, None].to(tl.uint32), nought
    if id.dtype == tl.int64:
        high = nought + (id[:, None] >> 32).to(tl.uint32)
    return tl.philox(key[:, None], low, high, block, nought + purpose[:, None].to(tl.uint32))


@triton.jit
def _picked(a, b, c, d, column):
    """The half of four words that belongs to each column, 0 … 7."""
    words = tl.where(column < 4, tl.where(column < 2, a, b), tl.where(column < 6, c, d))
    return tl.where(column % 2 == 0, words & 0xFFFF, words >> 16)


@triton.jit
def draws(key, id, purpose, column, WIDTH: tl.constexpr, ANYWHERE: tl.constexpr):
    """Sixteen random bits for each of WIDTH columns of ids [n], from column [n] on, uint32 [n, WIDTH]."""
    if ANYWHERE:
        columns = column[:, None].to(tl.int32) + tl.arange(0, WIDTH)[None, :]
        a, b, c, d = _words(key, id, (columns // 8).to(tl.uint32), purpose)
        found = _picked(a, b, c, d, columns % 8)
    else:
        BLOCKS: tl.constexpr = (WIDTH + 7) // 8
        block = (column[:, None].to(tl.int32) // 8 + tl.arange(0, BLOCKS)[None, :]).to(tl.uint32)
        a, b, c, d = _words(key, id, block, purpose)
        if WIDTH >= 8:
            words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
            found = tl.interleave(words & 0xFFFF, words >> 16)
        else:
            found = _picked(a, b, c, d, tl.arange(0, WIDTH)[None, :])
    return found


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
def round_stochastic(x, key, id, purpose, column, HALF: tl.constexpr, ANYWHERE: tl.constexpr):
    """Numbers float32 [n, WIDTH] in a half type, up or down by chance; keys, ids and purposes (2 + step) are [n].

    They begin at a column [n] of the whole row, which is a multiple of eight unless ANYWHERE: then each number takes a
    draw of its own.
    """
    draw = draws(key, id, purpose, column, x.shape[1], ANYWHERE)
    size = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    half = _float16(size, draw) if HALF == tl.float16 else _bfloat16(size, draw)
    return _signed(half, x, HALF)


@triton.jit
def round_nearest(x, HALF: tl.constexpr):
    """Numbers float32 in a half type, to nearest even. Triton's interpreter would cut bfloat16 off."""
    size = x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    half = _bfloat16(size, 0x7FFF + ((size >> 16) & 1))
    return x.to(HALF) if HALF == tl.float16 else _signed(half, x, HALF)


@triton.jit
def _signed(half, x, HALF: tl.constexpr):
    """The half type of these bits, with the signs of numbers float32."""
    return (((x.to(tl.uint32, bitcast=True) >> 16) & 0x8000) | half).to(tl.uint16).to(HALF, bitcast=True)
