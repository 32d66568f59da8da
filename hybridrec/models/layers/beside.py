"""Vectors and numbers side by side, as layers take them."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 16  # columns: what the matrix units of GPUs like; other widths are several times slower


def beside(*parts: Tensor) -> Tensor:
    """The columns of all parts [B, n] in turn; on a GPU with columns of zeros up to a multiple of ALIGNED.

    >>> beside(torch.ones(1, 2), torch.zeros(1, 1))
    tensor([[1., 1., 0.]])
    """
    first = parts[0]
    missing = -sum(part.shape[1] for part in parts) % ALIGNED if first.is_cuda else 0
    zeros = [first.new_zeros(len(first), missing)] if missing else []
    return torch.cat([*parts, *zeros], 1) if len(parts) + len(zeros) > 1 else first
