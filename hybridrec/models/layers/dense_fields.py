"""DenseFields: a vector for each dense column, as long as the number in it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hybridrec.models.layers.interaction import FieldSums


class DenseFields(nn.Module):
    """Numbers [B, n] to vectors [B, n, dim]: each column has a learned vector, multiplied by the number.

    So that a factorisation machine treats numbers and ids alike, as in the paper.

    >>> DenseFields(3, 8)(torch.zeros(2, 3)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, columns: int, dim: int, scale: float = 0.05) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(columns, dim).uniform_(-scale, scale))

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers.unsqueeze(2) * self.vectors

    def sums(self, numbers: Tensor) -> FieldSums:
        """The sums of the vectors, without making the vectors: two small matrix products, never in half precision."""
        with torch.autocast(numbers.device.type, enabled=False):
            return FieldSums(numbers @ self.vectors, numbers.square() @ self.vectors.square().sum(1))
