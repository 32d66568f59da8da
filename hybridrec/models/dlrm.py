"""DLRM: dense numbers through an MLP, pairwise dots with the vectors, an MLP on top (Naumov et al. 2019, 1906.00091).

dense -> bottom MLP -> vector
dots of all pairs of vectors, beside the dense vector -> top MLP -> logit
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, RunningNorm, pairs_beside
from hybridrec.models.model import Inputs, Model, same_dim
from hybridrec.types import Batch


class DLRMNet(nn.Module):
    """The dense part: vectors [B, F * dim], dense [B, n] to logits [B, k]."""

    def __init__(
        self, fields: int, dim: int, dense: int, outputs: int, bottom: Sequence[int], top: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.dim = dim
        self.norm = RunningNorm(dense)
        self.bottom = MLP(dense, (*bottom, dim), dropout=dropout) if dense else None
        vectors = fields + (self.bottom is not None)
        self.width = vectors * (vectors - 1) // 2 + dim * (self.bottom is not None)
        self.top = MLP(self.width, top, out=outputs, dropout=dropout)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        return self.above(vectors, self.below(dense))

    def below(self, dense: Tensor) -> Tensor | None:
        """What is made of the dense numbers alone, [B, dim]."""
        return None if self.bottom is None else self.bottom(self.norm(dense))

    def above(self, vectors: Tensor, below: Tensor | None) -> Tensor:
        """The rest of it."""
        parts = pairs_beside(below, vectors, self.dim)
        return self.top(*parts, zeros=sum(part.shape[1] for part in parts) - self.width)


class DLRM(Model):
    """The model of the MLPerf benchmark: many id features, some dense ones.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"user": pa.int64(), "item": pa.int64(), "age": pa.float32(), "click": pa.int8()})
    >>> model = DLRM(Schema.infer(columns, label="click"), dim=8, bottom=(16,), top=(32, 16))
    >>> model.net.top[0].in_features  # 8 dense, and 3 pairs of user, item and dense
    11
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        bottom: Sequence[int] = (64, 32),
        top: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        super().__init__(schema, dim, **inputs)
        self.bottom, self.top, self.dropout = bottom, top, dropout
        same_dim(self, self.declared)
        self.embeddings = self.collection(self.declared)
        fields, dense = len(self.embeddings.features), len(self.dense_names)
        if fields + bool(dense) < 2:
            raise ValueError("DLRM multiplies pairs of features, and the schema has one; add another, or take DCNv2")
        self.net: DLRMNet = DLRMNet(fields, dim, dense, self.outputs, bottom, top, dropout).to(self.device)

    def forward(self, batch: Batch) -> Tensor:
        compiled = self.net._compiled_call_impl is not None  # as a whole
        if compiled or not self.embeddings.begin(batch.ids):
            return super().forward(batch)
        below = self.net.below(self.dense(batch))  # while vectors come from other ranks
        return self.logits(self.net.above(self.embeddings(batch.ids).flat, below))
