"""Philox4x32-10 and what is drawn from it, in NumPy: the oracle that every other form equals bit for bit.

README.md beside this file has the counters of each draw and the steps of the rounding.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

HalfType = Literal["float16", "bfloat16"]

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK = 0xFFFFFFFF

# The last word of a counter says what is drawn; from ROUNDING on it also says at which step.
UNIFORM, NORMAL, ROUNDING = 0, 1, 2
ADMISSION_COLUMN = MASK  # beside UNIFORM: a column block that no table is wide enough to have

# Of eight uint16: their sum's mean, and its standard deviation.
NORMAL_MEAN = 8 * 0xFFFF // 2
NORMAL_DEVIATION = math.sqrt(8 * (2**32 - 1) / 12)


def philox4x32(counter: np.ndarray, key: int) -> np.ndarray:
    """Four random words uint32 [..., 4] for each counter uint32 [..., 4], under a 64-bit key (low word first).

    >>> [hex(word) for word in philox4x32(np.zeros(4, np.uint32), key=0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = np.moveaxis(np.asarray(counter).astype(np.uint64), -1, 0)
    low, high = key & MASK, key >> 32
    for _ in range(ROUNDS):
        left, right = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b = (right >> np.uint64(32)) ^ b ^ np.uint64(low), right & np.uint64(MASK)
        c, d = (left >> np.uint64(32)) ^ d ^ np.uint64(high), left & np.uint64(MASK)
        low, high = (low + WEYL[0]) & MASK, (high + WEYL[1]) & MASK
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


def uniform(key: int, ids: np.ndarray, dim: int, scale: float) -> np.ndarray:
    """Initial rows float32 [n, dim], uniform in [-scale, scale).

    >>> uniform(7, np.array([5]), 2, scale=1.0).dtype
    dtype('float32')
    """
    blocks = np.arange(-(-dim // 4))
    words = philox4x32(_counters(ids, blocks, UNIFORM), key).reshape(len(ids), 4 * len(blocks))[:, :dim]
    whole = (words >> np.uint32(8)).astype(np.int32) - np.int32(2**23)
    return whole.astype(np.float32) * np.float32(scale * 2.0**-23)


def normal(key: int, ids: np.ndarray, dim: int, std: float) -> np.ndarray:
    """Initial rows float32 [n, dim] of standard deviation `std`: sums of eight uniforms, within 4.9 std."""
    words = philox4x32(_counters(ids, np.arange(dim), NORMAL), key)  # [n, dim, 4]
    sums = _halves(words).astype(np.int32).sum(axis=-1, dtype=np.int32) - np.int32(NORMAL_MEAN)
    return sums.astype(np.float32) * np.float32(std / NORMAL_DEVIATION)


def admitted(key: int, ids: np.ndarray, probability: float) -> np.ndarray:
    """Whether each id is let into a table that admits with this probability, bool [n].

    >>> admitted(7, np.array([1, 2, 3]), 1.0)
    array([ True,  True,  True])
    """
    words = philox4x32(_counters(ids, np.array([ADMISSION_COLUMN]), UNIFORM), key)[:, 0, 0]
    return words.astype(np.int64) < round(probability * 2**32)


def round_stochastic(key: int, ids: np.ndarray, rows: np.ndarray, step: int, dtype: HalfType) -> np.ndarray:
    """The bits uint16 [n, D] of rows float32 [n, D] in a half type, each up or down by chance at this step.

    >>> round_stochastic(7, np.array([5]), np.array([[1.0, -2.5]], np.float32), 1, "float16").view(np.float16)
    array([[ 1. , -2.5]], dtype=float16)
    """
    return round_with(rows, rounding(key, ids, rows.shape[1], step), dtype)


def rounding(key: int, ids: np.ndarray, dim: int, step: int) -> np.ndarray:
    """What the rounding of rows at a step is drawn by, uint16 [n, dim]."""
    blocks = np.arange(-(-dim // 8))
    words = philox4x32(_counters(ids, blocks, ROUNDING + step % (2**32 - 2)), key)
    return _halves(words).astype(np.uint16).reshape(len(ids), 8 * len(blocks))[:, :dim]


def round_with(rows: np.ndarray, draws: np.ndarray, dtype: HalfType) -> np.ndarray:
    """The bits uint16 of float32 numbers in a half type, each rounded with its draw, a uint16."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    sign, size = (bits >> np.uint32(16)) & np.uint32(0x8000), bits & np.uint32(0x7FFFFFFF)
    half = {"float16": _float16, "bfloat16": _bfloat16}[dtype](size, draws.astype(np.uint32))
    return (sign | half).astype(np.uint16)


def _bfloat16(size: np.ndarray, draw: np.ndarray) -> np.ndarray:
    finite = np.minimum((size + draw) >> np.uint32(16), np.uint32(0x7F7F))
    return _special(size, finite, overflow=0x7F7F8000, infinity=0x7F80)


def _float16(size: np.ndarray, draw: np.ndarray) -> np.ndarray:
    normal = ((size + (draw & np.uint32(0x1FFF))) >> np.uint32(13)) - np.uint32(112 << 10)
    finite = np.where(size < 0x38800000, _subnormal(size, draw), np.minimum(normal, np.uint32(0x7BFF)))
    return _special(size, finite, overflow=0x477FF000, infinity=0x7C00)


def _subnormal(size: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Multiples of 2**-24: the number in fixed point with 16 fractional bits, plus the draw, cut off."""
    significand = (size & np.uint32(0x7FFFFF) | np.uint32(0x800000)).astype(np.uint64)
    shift = np.minimum(np.maximum(126 - (size >> np.uint32(23)).astype(np.int64), 0), 63).astype(np.uint64)
    fixed = (significand << np.uint64(16)) >> shift
    return ((fixed + draw) >> np.uint64(16)).astype(np.uint32)


def _special(size: np.ndarray, finite: np.ndarray, overflow: int, infinity: int) -> np.ndarray:
    """Infinity where rounding to nearest gives it; a quiet NaN, its top fraction bit set, where there was one."""
    half = np.where(size >= overflow, np.uint32(infinity), finite)
    quiet = infinity | (0x200 if infinity == 0x7C00 else 0x40)
    return np.where(size > 0x7F800000, np.uint32(quiet), half)


def _counters(ids: np.ndarray, blocks: np.ndarray, last: int) -> np.ndarray:
    """Counters uint32 [n, blocks, 4]: the id's low and high word, the block of columns, the purpose."""
    raw = np.asarray(ids, np.int64).view(np.uint64)[:, None]
    parts = raw & np.uint64(MASK), raw >> np.uint64(32), blocks.astype(np.uint64)[None, :], np.uint64(last)
    return np.stack(np.broadcast_arrays(*parts), axis=-1).astype(np.uint32)


def _halves(words: np.ndarray) -> np.ndarray:
    """Words uint32 [..., k] as uint16 [..., 2 k], the low half of each first."""
    pairs = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)
    return pairs.reshape(*words.shape[:-1], 2 * words.shape[-1])
