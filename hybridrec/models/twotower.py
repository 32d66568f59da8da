"""TwoTower: a vector for the user, a vector for the item, and their dot (Yi et al. 2019, RecSys).

logit = user tower . item tower / temperature
training: the items of the other rows, of all ranks, are the negatives. They come as often as they are popular, so
log of the share that an item has among the rows is subtracted from its logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, Popularity, RunningNorm
from hybridrec.models.layers.everyones import Everyones
from hybridrec.models.model import Inputs, Model, columns_of
from hybridrec.parallel.ranks import ranks
from hybridrec.types import Batch


class Tower(nn.Module):
    """One side's dense part: vectors [B, W] and dense [B, n] to vectors [B, D] of length 1."""

    def __init__(self, width: int, dense: int, hidden: Sequence[int], out: int, dropout: float) -> None:
        super().__init__()
        self.norm = RunningNorm(dense)
        self.deep = MLP(width + dense, hidden, out=out, dropout=dropout)

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        return normalize(self.deep(vectors, self.norm(dense)), dim=1)


class TwoTowerNet(nn.Module):
    """The dense part: vectors and dense numbers of users and items to their vectors."""

    def __init__(self, user: Tower, item: Tower) -> None:
        super().__init__()
        self.user, self.item = user, item

    def forward(self, user: Tensor, user_dense: Tensor, item: Tensor, item_dense: Tensor) -> tuple[Tensor, Tensor]:
        return self.user(user, user_dense), self.item(item, item_dense)


class TwoTower(Model):
    """Retrieval: `item` names the features of the item, its id first; all others are the user's.

    In training mode the logits are [B, B], row i's own item on the diagonal; where another row holds the same item, it
    is no negative and has -inf. Ranks that train together have [B, n], their own items first, then those of the
    others: the negatives are the items of all. In eval mode logits are [B]. `user_vectors` and `item_vectors` feed an
    index.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"user": pa.int64(), "video": pa.int64(), "tags": pa.list_(pa.int64()), "click": pa.int8()})
    >>> model = TwoTower(Schema.infer(columns, label="click"), dim=8, item=["video", "tags"])
    >>> model.user, model.item
    (('user',), ('video', 'tags'))
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        item: Sequence[str],
        hidden: Sequence[int] = (64,),
        out: int = 32,
        temperature: float = 0.1,
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        super().__init__(schema, dim, **inputs)
        self.item, self.user = tuple(item), _others(schema, item)
        self.hidden, self.out, self.temperature, self.dropout = hidden, out, temperature, dropout
        self.embeddings = self.collection(self.declared)
        self.popularity = Popularity().to(self.device)
        self.net: TwoTowerNet = TwoTowerNet(self._tower(self.user), self._tower(self.item)).to(self.device)

    def _tower(self, names: Sequence[str]) -> Tower:
        dims = dict(zip(self.embeddings.features, self.embeddings.dims, strict=True))
        width = sum(dims.get(name, 0) for name in names)
        return Tower(width, len(self._columns(names)), self.hidden, self.out, self.dropout)

    def _columns(self, names: Sequence[str]) -> list[int]:
        """The places of these features among the dense columns."""
        own = columns_of([feature for feature in self.schema.of("dense") if feature.name in names])
        return [place for place, name in enumerate(self.dense_names) if name in own]

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Vectors and dense numbers of the user, then of the item."""
        out, dense = self.embeddings(batch.ids), self.dense(batch)
        parts: list[Tensor] = []
        for names in (self.user, self.item):
            vectors = [out[name] for name in self.embeddings.features if name in names]
            columns = [dense[:, place : place + 1] for place in self._columns(names)]  # views: no index goes to the GPU
            parts += [torch.cat(part, 1) if part else dense[:, :0] for part in (vectors, columns)]
        return tuple(parts)

    def forward(self, batch: Batch) -> Tensor:
        """Training: logits [B, B] of every user with every item, corrected for popularity. Eval: [B]."""
        users, items = self.net(*self.inputs(batch))
        if not self.training:
            return (users * items).sum(1) / self.temperature
        ids, together = batch.ids.matrix(self.item[0])[:, 0], ranks()
        if together is None:
            return correct(users @ items.T / self.temperature, ids, self.popularity(ids))
        everyones = Everyones(together, len(ids))
        ids, items = everyones.gather(ids), everyones.gather(items)
        if self.popularity.training:
            self.popularity.count(ids)
        return correct(users @ items.T / self.temperature, ids, self.popularity.shares(ids))

    def output_biases(self) -> list[Tensor]:
        return []  # a dot of two vectors has none

    def user_vectors(self, batch: Batch) -> Tensor:
        """The users of a batch as vectors [B, out] of length 1."""
        return self.net.user(*self.inputs(batch)[:2])

    def item_vectors(self, batch: Batch) -> Tensor:
        """The items of a batch as vectors [B, out] of length 1."""
        return self.net.item(*self.inputs(batch)[2:])


def correct(logits: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
    """Logits [B, n] less the log of each item's share; -inf where another row holds the same item.

    Item i is row i's own, whatever more items there are.

    >>> correct(torch.zeros(2, 2), torch.tensor([5, 6]), torch.tensor([0.5, 0.25]))
    tensor([[0.6931, 1.3863],
            [0.6931, 1.3863]])
    """
    same = ids.unsqueeze(0) == ids[: len(logits)].unsqueeze(1)
    same.fill_diagonal_(False)
    return (logits - shares.log().unsqueeze(0)).masked_fill(same, -torch.inf)


def _others(schema: Schema, item: Sequence[str]) -> tuple[str, ...]:
    if isinstance(item, str):
        raise TypeError(f"item is the string {item!r}; it must be a list, such as [{item!r}]")
    names = [feature.name for feature in schema.of("id", "dense")]
    if unknown := [name for name in item if name not in names]:
        raise ValueError(f"item names {unknown[0]!r}, which is no id or dense feature; those are {', '.join(names)}")
    singles = [f.name for f in schema.of("id") if not f.ragged and f.size is None]
    if not item or item[0] not in singles:
        raise ValueError(
            f"item is {list(item)}; its first name must be the id of the item, a single id: {', '.join(singles)}"
        )
    if not (user := tuple(name for name in names if name not in item)):
        raise ValueError("item names every feature; leave some for the user's tower")
    return user
