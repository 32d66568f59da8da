"""DIN: what a user did before, weighed by what is shown now (Zhou et al. 2018, arXiv:1706.06978).

interest = attention of the shown item over the history, item by item
logit = MLP over all vectors, the interests and the dense numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, AttentionPooling, RunningNorm
from hybridrec.models.model import Inputs, Model, check_schema
from hybridrec.types import Batch, Ragged


class DINNet(nn.Module):
    """The dense part: vectors [B, W], dense [B, n], then for each history a query [B, D], keys [N, D], offsets."""

    def __init__(self, width: int, dense: int, deep: Sequence[int], pools: Sequence[AttentionPooling], **mlp) -> None:
        super().__init__()
        self.norm = RunningNorm(dense)
        self.attention = nn.ModuleList(pools)
        self.deep = MLP(width + dense, deep, **mlp)

    def forward(self, vectors: Tensor, dense: Tensor, *histories: Tensor) -> Tensor:
        parts = [vectors, self.norm(dense)]
        for place, pool in enumerate(self.attention):
            query, keys, offsets = histories[3 * place : 3 * place + 3]
            parts.append(pool(query, keys, offsets))
        return self.deep(*parts)


class DIN(Model):
    """Attention over ragged histories: `history` names the list features and what each is compared with.

    A history uses the table of the feature that it is compared with. Lists that are not named are pooled by the mean.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"item": pa.int64(), "seen": pa.list_(pa.int64()), "click": pa.int8()})
    >>> model = DIN(Schema.infer(columns, label="click"), dim=8, history={"seen": "item"})
    >>> model.embeddings.tables["item"].combiners
    {'item': 'sum', 'seen': 'none'}
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        history: Mapping[str, str],
        hidden: Sequence[int] = (64, 32),
        attention: Sequence[int] = (32, 16),
        softmax: bool = False,
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        check_schema(schema)
        _check(schema, history)
        inputs["share"] = {**(inputs.get("share") or {}), **history}
        super().__init__(schema, dim, sequences=tuple(history), **inputs)
        self.history, self.hidden, self.attention = dict(history), hidden, attention
        self.softmax, self.dropout = softmax, dropout
        dims = {name: table.dim for table in self.declared for name in table.combiners}
        beside = len(self.dense_names) + sum(dims[name] for name in history)
        self.embeddings = self.collection(self.declared, room=beside)
        pools = [AttentionPooling(dims[name], attention, softmax=softmax) for name in history]
        made = DINNet(sum(dims.values()), len(self.dense_names), hidden, pools, out=self.outputs, dropout=dropout)
        self.net = made.to(self.device)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        out = self.embeddings(batch.ids)
        parts = [out.flat, self.dense(batch)]
        for name, shown in self.history.items():
            query, items = out[shown], out[name]
            assert isinstance(query, Tensor), "what is compared with is pooled"
            assert isinstance(items, Ragged), "a history is a sequence"
            parts += [query, items.flat, items.offsets]
        return tuple(parts)


def _check(schema: Schema, history: Mapping[str, str]) -> None:
    lists = [feature.name for feature in schema.of("id") if feature.ragged or feature.size is not None]
    if not history:
        raise ValueError(
            "DIN needs history={list feature: the feature it is compared with}; the lists of ids are "
            f"{', '.join(lists) or 'none'}"
        )
    for name in history:
        if name not in lists:
            raise ValueError(f"history names {name!r}, which is no list of ids; those are {', '.join(lists) or 'none'}")
