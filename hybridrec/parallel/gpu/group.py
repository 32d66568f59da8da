"""DeviceShardedGroup: tables that lie on the GPUs of several ranks, updated together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.lookup import Looked
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.row_groups.triton import Sizes
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.parallel.apart import refuse_clipping, refuse_rule
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.gpu.beside import Beside
from hybridrec.parallel.gpu.departures import Departures
from hybridrec.parallel.gpu.lookup import DeviceShardedLookup
from hybridrec.parallel.gpu.transport import Transport
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.sharded_group import OverRanks
from hybridrec.parallel.weighing import Weighing

ONE_BY_ONE = Sizes(ids=16, few=2, chunk=4, programs=1, warps=1)  # for the interpreter, which runs programs in turn


class DeviceShardedGroup(OverRanks, DeviceGroup):
    """Tables on the GPU of this rank. Steps are never part of a CUDA graph: how much travels differs every time."""

    leaves_room = False

    def __init__(
        self,
        stores: Mapping[str, Any],
        trainable: set[str],
        pieces: Mapping[str, Sequence[Piece]],
        ranks: Ranks,
        exchange: Exchange,
        weighing: Weighing,
        wire: Wire,
        transport: Transport,
    ) -> None:
        super().__init__(stores, trainable, pieces, ranks, exchange, weighing, wire)
        self.transport = transport
        self.beside, self.departures = Beside(self.device), Departures()
        if self.device.type != "cuda":
            self.sizes = ONE_BY_ONE

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Any:
        return DeviceShardedLookup(self, features, remedy)

    def read(self, lookup: Any, ids: Tensor) -> Tensor:
        return lookup.rows(ids.to(self.device))

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        refuse_rule(self.pieces, name, rule, owner)
        super().claim(name, rule, owner)

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        refuse_clipping(self.pieces, steps)
        super().refuse(steps)

    def _summed(self, calls: list[Looked], name: str) -> tuple[Tensor, Tensor]:
        """Of a table that every rank has, the sums of all calls in their order: the same bits everywhere."""
        if len(calls) < 3 or not self.pieces[name][0].copied:
            return super()._summed(calls, name)
        each = [super(DeviceShardedGroup, self)._summed([looked], name) for looked in calls]
        rows, inverse = torch.cat([found for found, _ in each]).unique(return_inverse=True)
        sums = torch.zeros(len(rows), self.stores[name].dim, device=self.device)
        for (_, grads), to in zip(each, inverse.split([len(found) for found, _ in each]), strict=True):
            sums.index_add_(0, to, grads)
        return rows, sums
