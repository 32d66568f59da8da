"""Tensors that view one arena: where they lie in it, and the same views on a copy of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """A tensor as a place in an arena."""

    offset: int  # bytes from the arena's start
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def on(self, arena: Tensor) -> Tensor:
        """The tensor at this place of `arena`."""
        empty = torch.empty(0, dtype=self.dtype, device=arena.device)
        start = (int(arena.storage_offset()) + self.offset) // self.dtype.itemsize
        return empty.set_(arena.untyped_storage(), start, self.shape, self.stride)


def check_arena(arena: Tensor) -> None:
    """Refuse anything that is not a plain run of bytes."""
    if arena.dtype != torch.uint8 or arena.dim() != 1 or not arena.is_contiguous():
        raise TypeError(
            "an arena must be a contiguous uint8 tensor of one dimension, got "
            f"{arena.dtype} {list(arena.shape)}; allocate it with torch.empty(n, dtype=torch.uint8)"
        )


def compact(arena: Tensor) -> Tensor:
    """The arena, copied where its storage is larger than itself: pickling writes whole storages."""
    return arena if arena.untyped_storage().nbytes() == len(arena) else arena.clone()


def locate(tensor: Tensor, arena: Tensor) -> View | None:
    """Where the tensor lies in the arena, or None where it lies elsewhere or carries a gradient."""
    if tensor.device != arena.device or tensor.requires_grad:
        return None
    if tensor.untyped_storage()._cdata != arena.untyped_storage()._cdata and _address(tensor) == 0:
        return None
    size = tensor.element_size()
    offset = _address(tensor) - _address(arena)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    stop = offset + (last + 1) * size if tensor.numel() else offset
    if offset < 0 or offset % size or stop > len(arena):
        return None
    return View(offset, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _address(tensor: Tensor) -> int:
    """Where the first element lies; unlike data_ptr(), also for a tensor without elements."""
    return tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * tensor.element_size()
