"""DeepFM: a factorisation machine and an MLP over the same vectors (Guo et al. 2017, arXiv:1703.04247).

logit = first order + pairs + deep
first order   one weight per id, one per dense column
pairs         the sum of the dot products of all pairs of vectors
deep          MLP over the vectors and the dense numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, DenseFields, FirstOrder, RunningNorm, fm_interaction
from hybridrec.models.model import Inputs, Model, same_dim
from hybridrec.models.tables import wide_tables
from hybridrec.types import Batch


class DeepFMNet(nn.Module):
    """The dense part: weights [B, F * k], vectors [B, F * dim], dense [B, n] to logits [B, k]."""

    def __init__(self, fields: int, dim: int, dense: int, outputs: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.norm = RunningNorm(dense)
        self.fields = DenseFields(dense, dim)
        self.first = FirstOrder(dense, outputs)
        self.deep = MLP(fields * dim + dense, hidden, out=outputs, dropout=dropout)

    def forward(self, first: Tensor, vectors: Tensor, dense: Tensor) -> Tensor:
        numbers = self.norm(dense)
        pairs = fm_interaction(vectors.unflatten(1, (-1, self.dim)), self.fields.sums(numbers))
        return self.first(first, numbers) + pairs.unsqueeze(1) + self.deep(vectors, numbers)


class DeepFM(Model):
    """Pairs of features without crosses made by hand; a good first model for click data.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"user": pa.int64(), "tags": pa.list_(pa.int64()), "age": pa.float32(), "click": pa.int8()})
    >>> model = DeepFM(Schema.infer(columns, label="click"), dim=8, hidden=(16,))
    >>> model.embeddings.features, model.wide.dims
    (('user', 'tags'), (1, 1))
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        hidden: Sequence[int] = (64, 32),
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        super().__init__(schema, dim, **inputs)
        self.hidden, self.dropout = hidden, dropout
        same_dim(self, self.declared)
        self.embeddings = self.collection(self.declared, room=len(self.dense_names))
        self.wide = self.collection(wide_tables(self.declared, self.outputs))
        fields = len(self.embeddings.features)
        self.net = DeepFMNet(fields, dim, len(self.dense_names), self.outputs, hidden, dropout).to(self.device)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.wide(batch.ids).flat, self.embeddings(batch.ids).flat, self.dense(batch)
