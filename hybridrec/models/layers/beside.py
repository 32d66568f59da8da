"""Vectors and numbers side by side, as layers take them."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec.ops.room import aligned_width, join


def beside(*parts: Tensor) -> Tensor:
    """The columns of all parts [B, n] in turn; on a GPU with columns of zeros up to a multiple of 16.

    There, vectors of a collection with `room` for the other parts are not copied.

    >>> beside(torch.ones(1, 2), torch.zeros(1, 1))
    tensor([[1., 1., 0.]])
    """
    first, *rest = parts
    if first.is_cuda and rest and not torch.compiler.is_compiling():
        joined = join(first, rest[0] if len(rest) == 1 else torch.cat(rest, 1))
        if joined is not None:
            return joined
    width = sum(part.shape[1] for part in parts)
    missing = aligned_width(width) - width if first.is_cuda else 0
    zeros = [first.new_zeros(len(first), missing)] if missing else []
    return torch.cat([*parts, *zeros], 1) if len(parts) + len(zeros) > 1 else first
