"""DeviceShardedGroup: tables that lie on the GPUs of several ranks, updated together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.lookup import Looked
from hybridrec.embedding.queue import FeatureSpec, QueuedCall
from hybridrec.ops.row_groups.triton import Sizes
from hybridrec.ops.row_update.triton import update_listed
from hybridrec.optim.rule import RowStep
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.gpu.beside import Beside
from hybridrec.parallel.gpu.departures import Departures
from hybridrec.parallel.gpu.lookup import DeviceShardedLookup
from hybridrec.parallel.gpu.transport import Transport
from hybridrec.parallel.gpu.whole_rows import measured, one_by_one, seen_whole
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.sharded_group import OverRanks
from hybridrec.parallel.weighing import Weighing

ONE_BY_ONE = Sizes(ids=64, few=2, chunk=4, programs=1, warps=1)  # for the interpreter, which runs programs in turn


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
        self.beside_rows = Beside(self.device, self.gate) if self.tiered else self.beside  # that come to the device
        if self.device.type != "cuda":
            self.sizes = ONE_BY_ONE

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Any:
        return DeviceShardedLookup(self, features, remedy)

    def read(self, lookup: Any, ids: Tensor) -> Tensor:
        return lookup.rows(ids.to(self.device))

    def send_sums(self, message: Tensor, sizes: Sequence[int]) -> Tensor:
        return self.transport.send("sums", message, sizes, sizes).wait()

    def _run(self, calls: list[QueuedCall], steps: Mapping[str, RowStep], outcome: Tensor, norm: bool) -> None:
        whole = {name: step for name, step in steps.items() if not norm and self.wants_whole(name, step)}
        if not whole:
            return super()._run(calls, steps, outcome, norm)
        before = {place: outcome[place].clone() for place, name in enumerate(self.names, 1) if name in whole}
        blind = {name: replace(step, grad_scale=nan) if name in whole else step for name, step in steps.items()}
        super()._run(calls, blind, outcome, norm)  # which leaves out all rows that have no finite gradient
        for place, found in before.items():
            outcome[place] = found
        return self._run_whole(calls, whole, outcome)

    def _run_whole(self, calls: list[QueuedCall], steps: Mapping[str, RowStep], outcome: Tensor) -> None:
        """The step of tables whose rows must be seen whole."""
        here = {name: step for name, step in steps.items() if not self.stores[name].share.empty}
        summed = {name: self._summed([call.work for call in calls if name in call.left], name) for name in here}
        weights = {name: self.stores[name].there[rows].float() for name, (rows, _) in summed.items()}
        parts = {name: measured(step, summed[name][1], weights[name]) for name, step in here.items()}
        for name, sums in self.sums.add_up(parts, self.device).items():
            store, (rows, grads), step = self.stores[name], summed[name], here[name]
            kept = next((store.states[column.name] for column in step.rule.state if column.per_row), None)
            state = None if kept is None else kept[rows]
            given, moved = seen_whole(step, sums, grads, weights[name], state, store.table.dim)
            if kept is not None:
                kept[rows] = moved  # pyright: ignore[reportArgumentType]
            summed[name] = rows, given
        alone = {name: one_by_one(step) for name, step in here.items()}
        to = self._addresses(), *self._numbers(alone), outcome, False, self._held
        for name, (rows, grads) in summed.items():
            facts = self.facts(name)
            update_listed(rows, grads, facts.number, facts.dtype, alone[name].rule.kind, *to)

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
