"""AttentionPooling: a sequence of any length pooled by how much each item has to do with a query."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hybridrec.models.layers.mlp import MLP


class AttentionPooling(nn.Module):
    """The activation unit of DIN over ragged sequences: no padding, no mask, no longest length.

    The items of row i are keys[offsets[i]:offsets[i + 1]]. An MLP on (query, key, query - key, query * key) gives each
    item its weight; the result is the weighted sum, zeros for a row without items. As in the paper the weights are not
    normalised, so that much interest gives a long vector; `softmax=True` makes them sum to 1 in each row.

    >>> pool = AttentionPooling(4)
    >>> query, keys, offsets = torch.randn(2, 4), torch.randn(3, 4), torch.tensor([0, 3, 3])
    >>> pool(query, keys, offsets).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, dim: int, hidden: Sequence[int] = (32, 16), *, softmax: bool = False, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.score = MLP(4 * dim, hidden, out=1, activation=activation)
        self.softmax = softmax

    def forward(self, query: Tensor, keys: Tensor, offsets: Tensor) -> Tensor:
        row = torch.repeat_interleave(offsets.diff(), output_size=keys.shape[0])  # [N]: the row of each item
        asked = query.index_select(0, row)  # [N, D]
        weight = self.score(torch.cat([asked, keys, asked - keys, asked * keys], 1))  # [N, 1]
        if self.softmax:
            weight = row_softmax(weight, row, query.shape[0])
        return torch.zeros_like(query).index_add(0, row, (weight * keys).to(query.dtype))


def row_softmax(scores: Tensor, row: Tensor, rows: int) -> Tensor:
    """Softmax of scores [N, 1] among the items of the same row [N].

    >>> row_softmax(torch.zeros(3, 1), torch.tensor([0, 0, 1]), rows=2)
    tensor([[0.5000],
            [0.5000],
            [1.0000]])
    """
    most = scores.new_full((rows, 1), -torch.inf).scatter_reduce(0, row.unsqueeze(1), scores.detach(), "amax")
    power = (scores - most.index_select(0, row)).exp()
    total = power.new_zeros(rows, 1).index_add(0, row, power)
    return power / total.index_select(0, row)
