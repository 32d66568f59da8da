"""WideDeep: a linear model and a deep one, trained together (Cheng et al. 2016, arXiv:1606.07792).

logit = wide + deep
wide    one weight per id of every feature, crosses among them
deep    MLP over vectors and dense numbers; crosses are left out
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, FirstOrder, RunningNorm
from hybridrec.models.model import Inputs, Model
from hybridrec.models.tables import wide_tables
from hybridrec.types import Batch


class WideDeepNet(nn.Module):
    """The dense part: sums of weights [B, F * k], vectors [B, W], dense [B, n] to logits [B, k]."""

    def __init__(self, width: int, dense: int, outputs: int, hidden: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.norm = RunningNorm(dense)
        self.wide = FirstOrder(dense, outputs)
        self.deep = MLP(width + dense, hidden, out=outputs, dropout=dropout)

    def forward(self, wide: Tensor, vectors: Tensor, dense: Tensor) -> Tensor:
        numbers = self.norm(dense)
        return self.wide(wide, numbers) + self.deep(vectors, numbers)


class WideDeep(Model):
    """Remembers pairs by its wide part, generalises by its deep one: add crosses to the schema for the former.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"job": pa.string(), "town": pa.string(), "age": pa.float32(), "rich": pa.int8()})
    >>> model = WideDeep(Schema.infer(columns, label="rich").cross("job", "town", buckets=1000), dim=8)
    >>> model.wide.features, model.embeddings.features
    (('job', 'town', 'job_x_town'), ('job', 'town'))
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
        crossed = {feature.name for feature in schema.of("id") if feature.cross is not None}
        deep = [table for table in self.declared if not crossed.issuperset(table.features)]
        self.embeddings = self.collection(deep or self.declared, room=len(self.dense_names))
        self.wide = self.collection(wide_tables(self.declared, self.outputs))
        width, dense = sum(self.embeddings.dims), len(self.dense_names)
        self.net = WideDeepNet(width, dense, self.outputs, hidden, dropout).to(self.device)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.wide(batch.ids).flat, self.embeddings(batch.ids).flat, self.dense(batch)
