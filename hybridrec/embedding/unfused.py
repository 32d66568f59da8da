"""Tables as plain `nn.Parameter`s, for any torch optimizer: the plain form of a collection, slow and differentiable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.out_of_range import resolve
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.embedding.table import Table
from hybridrec.ops.pooled_lookup.reference import pool
from hybridrec.types import IdBlock


class TableWeight(nn.Module):
    """The rows of one fixed table, `weight` [rows, dim], with the initial values of the fused form.

    The collection that it is in loads it, so that a misfit is reported like that of any table.
    """

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__()
        if table.dynamic:
            raise ValueError(f"table {table.name!r} is dynamic, which fused=False has no parameters for; give it rows=")
        self.table = table
        self.weight = nn.Parameter(DenseStore(table, seed).weight.clone(), requires_grad=table.trainable)

    def forward(self, ids: Tensor, feature: str | None, sparse: bool) -> tuple[Tensor, Tensor]:
        """Rows [n, dim], and for every id its place among them, -1 where it has none."""
        slots = resolve(self.table, ids, feature)
        live = slots >= 0
        places = torch.where(live, live.cumsum(0) - 1, -1)
        return nn.functional.embedding(slots[live], self.weight, sparse=sparse), places

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows [n, dim] of ids, zeros for those that have none."""
        rows, places = self(ids, None, False)
        return rows.new_zeros(len(ids), self.table.dim).index_copy(0, (places >= 0).nonzero()[:, 0], rows)

    def _load_from_state_dict(self, *args: Any) -> None:
        pass

    def extra_repr(self) -> str:
        return f"{list(self.weight.shape)} {self.weight.dtype}"


class UnfusedLookup:
    """Every feature by itself: gathers rows, and pools them by the reference."""

    def __init__(self, features: tuple[FeatureSpec, ...], weights: Mapping[str, TableWeight], sparse: bool) -> None:
        self.features = features
        self.weights = weights
        self.sparse = sparse

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, list[Tensor]]:
        pooled, sequences = [torch.empty(block.batch_size, 0)], []
        for feature in self.features:
            ids = block[feature.name]
            rows, places = self.weights[feature.table](ids.flat, feature.name, self.sparse)
            weights = block.weights_of(feature.name)
            made = pool(rows, places, ids.offsets, weights, feature.combiner, feature.group)  # pyright: ignore
            (sequences if feature.combiner == "none" else pooled).append(made)
        return torch.cat(pooled[1:] or pooled, dim=1), sequences
