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
        rows, row = query.shape[0], row_of_items(offsets, keys.shape[0])
        asked = query.index_select(0, row.clamp(max=rows - 1))  # [N, D]
        weight = self.score(torch.cat([asked, keys, asked - keys, asked * keys], 1))  # [N, 1]
        if self.softmax:
            weight = row_softmax(weight, row, rows + 1)
        return query.new_zeros(rows + 1, query.shape[1]).index_add(0, row, (weight * keys).to(query.dtype))[:rows]


def row_of_items(offsets: Tensor, items: int) -> Tensor:
    """The row of each item, int64 [items]; one past the last row for items that no row reaches to.

    Only a GPU's batches have such items: their lists may have room that is not used.

    >>> row_of_items(torch.tensor([0, 2, 2, 3]), 3)
    tensor([0, 0, 2])
    """
    if offsets.device.type == "cpu":
        return torch.repeat_interleave(offsets.diff(), output_size=items)
    return torch.searchsorted(offsets[1:], torch.arange(items, device=offsets.device), right=True)


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
