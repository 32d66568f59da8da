"""Dot products of pairs on the CPU: one pass over the vectors each way, by native code."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.types.ragged import readable


def suits(below: Tensor | None, fields: Tensor, dim: int) -> bool:
    """Whether native code takes these vectors: float32 numbers that lie in memory, whose products are to be so."""
    parts = [fields] if below is None else [below, fields]
    if torch.is_autocast_enabled("cpu") or not all(map(readable, parts)):
        return False
    return all(part.dtype == torch.float32 and part.stride(1) == 1 for part in parts)


def forward(below: Tensor | None, fields: Tensor, dim: int, width: int, kind: torch.dtype) -> Tensor:
    """[B, width]; `kind` is float32."""
    out = _recycled(len(fields), width)
    _native.set_threads(torch.get_num_threads())
    _vectors(below, fields, dim).forward(len(fields), out.data_ptr(), width)
    return out


def backward(grad: Tensor, below: Tensor | None, fields: Tensor, dim: int) -> tuple[Tensor | None, Tensor]:
    """The gradients of below and fields, for that of what `forward` gave."""
    of_fields, of_below = _recycled(*fields.shape), None if below is None else _recycled(*below.shape)
    _native.set_threads(torch.get_num_threads())
    given = grad.data_ptr(), grad.stride(0)
    _vectors(below, fields, dim).backward(len(fields), *given, _address(of_below), of_fields.data_ptr())
    return of_below, of_fields


def _vectors(below: Tensor | None, fields: Tensor, dim: int) -> _native.PairDots:
    stride = 0 if below is None else below.stride(0)
    return _native.PairDots(_address(below), stride, fields.data_ptr(), fields.stride(0), fields.shape[1] // dim, dim)


def _address(part: Tensor | None) -> int:
    return 0 if part is None else part.data_ptr()


@cache
def _arena() -> _native.Arena:
    return _native.Arena.create()


def _recycled(rows: int, columns: int) -> Tensor:
    """A tensor in memory that comes back when it goes: touching fresh memory costs more than filling it."""
    if rows * columns == 0:
        return torch.empty(rows, columns)
    return torch.from_numpy(_arena().take(4 * rows * columns).view(np.float32).reshape(rows, columns))
