"""What reference.py draws, for tensors, equal to it bit for bit. Initial values are made on any device.

Everything of theirs is int64 arithmetic that never leaves 63 bits, so that no device has to wrap around alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec.ops.philox import reference
from hybridrec.ops.philox.reference import (
    MASK,
    MULTIPLIERS,
    NORMAL,
    NORMAL_DEVIATION,
    NORMAL_MEAN,
    ROUNDS,
    UNIFORM,
    WEYL,
)


def philox4x32(counter: Tensor, key: int) -> Tensor:
    """Four random words, as int64 [..., 4], for each counter of four words, int64 [..., 4]."""
    a, b, c, d = counter.unbind(-1)
    low, high = key & MASK, key >> 32
    for _ in range(ROUNDS):
        left, right = _multiply(a, MULTIPLIERS[0]), _multiply(c, MULTIPLIERS[1])
        a, b, c, d = right[0] ^ b ^ low, right[1], left[0] ^ d ^ high, left[1]
        low, high = (low + WEYL[0]) & MASK, (high + WEYL[1]) & MASK
    return torch.stack([a, b, c, d], -1)


def uniform(key: int, ids: Tensor, dim: int, scale: float) -> Tensor:
    """Initial rows float32 [n, dim], uniform in [-scale, scale).

    >>> uniform(7, torch.tensor([5]), 2, scale=1.0).shape
    torch.Size([1, 2])
    """
    words = philox4x32(_counters(ids, -(-dim // 4), UNIFORM), key).flatten(1)[:, :dim]
    return ((words >> 8) - 2**23).float() * _float32(scale * 2.0**-23, ids.device)


def normal(key: int, ids: Tensor, dim: int, std: float) -> Tensor:
    """Initial rows float32 [n, dim] of standard deviation `std`."""
    words = philox4x32(_counters(ids, dim, NORMAL), key)  # [n, dim, 4]
    sums = ((words & 0xFFFF) + (words >> 16)).sum(-1) - NORMAL_MEAN
    return sums.float() * _float32(std / NORMAL_DEVIATION, ids.device)


def round_stochastic(key: int, ids: Tensor, rows: Tensor, step: int, dtype: torch.dtype, column: int = 0) -> Tensor:
    """Rows float32 [n, dim] on the CPU in the type of their table, half types up or down by chance at this step.

    Where they are rows without their first columns, `column` says how many are left out: draws go by the whole row.

    >>> round_stochastic(7, torch.tensor([5]), torch.tensor([[1.0, -2.5]]), 1, torch.float16)
    tensor([[ 1.0000, -2.5000]], dtype=torch.float16)
    """
    if dtype == torch.float32:
        return rows
    kind = "float16" if dtype == torch.float16 else "bfloat16"
    whole = torch.nn.functional.pad(rows, (column, 0))
    found = reference.round_stochastic(key, ids.numpy(), whole.numpy(), step, kind)
    return torch.from_numpy(found).view(dtype)[:, column:]


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of two words, from products of 48 bits."""
    upper, lower = factor * (word >> 16), factor * (word & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & MASK


def _counters(ids: Tensor, blocks: int, last: int) -> Tensor:
    """Counters [n, blocks, 4]: the id's low and high word, the block of columns, the purpose."""
    block = torch.arange(blocks, device=ids.device)[None, :]
    parts = (ids & MASK)[:, None], ((ids >> 32) & MASK)[:, None], block, torch.full_like(block, last)
    return torch.stack(torch.broadcast_tensors(*parts), -1)


def _float32(value: float, device: torch.device) -> Tensor:
    """One float32, so that the product with it is rounded once."""
    return torch.tensor(value, dtype=torch.float32, device=device)
