"""DCNv2: a cross network of explicit products beside a deep one (Wang et al. 2021, arXiv:2008.13535).

x0 = vectors and dense numbers
cross   x0 -> x0 * (W x + b) + x, some layers; W full or of low rank
parallel: cross and MLP side by side, then the logit;  stacked: the MLP on top of the cross network
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, CrossLayer, RunningNorm, crossed
from hybridrec.models.layers.beside import beside
from hybridrec.models.layers.mlp import relu_layers, together, watched
from hybridrec.models.model import Inputs, Model

STRUCTURES = ("parallel", "stacked")


class DCNv2Net(nn.Module):
    """The dense part: vectors [B, W], dense [B, n] to logits [B, k]."""

    def __init__(self, width: int, dense: int, outputs: int, cross: Sequence[CrossLayer], deep: MLP, stacked: bool):
        super().__init__()
        self.stacked, self.width = stacked, width + dense
        self.norm = RunningNorm(dense)
        self.cross = nn.ModuleList(cross)
        self.deep = deep
        self.head = nn.Linear(deep.out + (0 if stacked else width + dense), outputs)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        x0 = beside(vectors, self.norm(dense))
        x = crossed(x0, self.cross)
        if self.stacked:
            return self._headed(x)
        return self.head(torch.cat([x[:, : self.width], self._deep(x0)], 1))

    def _headed(self, x: Tensor) -> Tensor:
        """The head above the deep layers; on a GPU as one more of them, so that its gradients need no products."""
        layers = relu_layers(self.deep) if x.is_cuda and len(self.deep) and not watched(self.head) else []
        if layers and type(self.head) is nn.Linear:
            return together(x, [*layers, self.head], relu_last=False)
        return self.head(self._deep(x))

    def _deep(self, x: Tensor) -> Tensor:
        """Layers take columns of zeros behind their own; without layers there is nobody to drop them."""
        return self.deep(x if len(self.deep) else x[:, : self.width])


class DCNv2(Model):
    """Products of features up to the degree `crosses` + 1. With `rank`, the matrices are of low rank.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"user": pa.int64(), "item": pa.int64(), "click": pa.int8()})
    >>> full, low = (DCNv2(Schema.infer(columns, label="click"), dim=8, rank=rank) for rank in (None, 2))
    >>> [sum(p.numel() for p in model.net.cross.parameters()) for model in (full, low)]
    [544, 160]
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        crosses: int = 2,
        rank: int | None = None,
        hidden: Sequence[int] = (64, 32),
        structure: Literal["parallel", "stacked"] = "parallel",
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        super().__init__(schema, dim, **inputs)
        self.crosses, self.rank, self.hidden = crosses, rank, hidden
        self.structure, self.dropout = structure, dropout
        if structure not in STRUCTURES:
            raise ValueError(f"structure is {structure!r}; valid are {', '.join(STRUCTURES)}")
        self.embeddings = self.collection(self.declared, room=len(self.dense_names))
        vectors, dense = sum(self.embeddings.dims), len(self.dense_names)
        layers = [CrossLayer(vectors + dense, rank) for _ in range(crosses)]
        deep = MLP(vectors + dense, hidden, dropout=dropout)
        self.net = DCNv2Net(vectors, dense, self.outputs, layers, deep, structure == "stacked").to(self.device)
