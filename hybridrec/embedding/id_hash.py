"""Hashes of ids, and rows from them."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec import _native


@torch.library.custom_op("hybridrec::hash_ids", mutates_args=(), device_types="cpu")
def hash_ids(ids: Tensor) -> Tensor:
    """XXH64 of the 8 little-endian bytes of every id, with seed 0, as int64 of the same 64 bits."""
    source = ids.contiguous()
    made = torch.empty_like(source)
    _native.hash_int64(source.data_ptr(), source.numel(), made.data_ptr(), 0)
    return made


@hash_ids.register_kernel("cuda")
def _(ids: Tensor) -> Tensor:
    from hybridrec.ops.id_hash import triton

    return triton.hash_ids(ids)


@hash_ids.register_fake
def _(ids: Tensor) -> Tensor:
    return torch.empty_like(ids, memory_format=torch.contiguous_format)


def remainder(bits: Tensor, size: int) -> Tensor:
    """The 64 bits of an int64, read as a number without sign, modulo `size` (at most 2**62).

    >>> remainder(torch.tensor([7, -1]), 10)  # -1 has the bits of 2**64 - 1
    tensor([7, 5])
    """
    upper, last = (bits >> 1) & (2**63 - 1), bits & 1
    return (upper % size * 2 + last) % size


def hashed_rows(ids: Tensor, size: int) -> Tensor:
    """A row from 0 … size - 1 for every id, by its hash."""
    return remainder(hash_ids(ids), size)
