"""ShardedGroup: tables that lie on several ranks, updated together."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.queue import FeatureSpec, GradientQueue, QueuedCall
from hybridrec.optim.rule import RowStep
from hybridrec.parallel.column_sums import ColumnSums, sums_of
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.rank_lookup import RankLookup
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.sharded_lookup import ShardedLookup
from hybridrec.parallel.weighing import Weighing

LARGE = 1e25  # gradients below it stay finite, however many of them are added up


class OverRanks(GradientQueue[Any]):
    """This rank's shares of tables, with one queue of gradients from all ranks: what wraps a group of one process.

    `pieces` says for each table who holds what. Gradients arrive after their backward call has returned; whoever asks
    for the queue waits for them. Norms and checks are those of the whole tables: every rank asks for them.
    """

    prepares = True  # ids may be sent ahead of their lookup

    def __init__(
        self,
        stores: Mapping[str, Any],
        trainable: set[str],
        pieces: Mapping[str, Sequence[Piece]],
        ranks: Ranks,
        exchange: Exchange,
        weighing: Weighing,
        wire: Wire,
    ) -> None:
        super().__init__(stores, trainable)
        self.pieces = {name: tuple(parts) for name, parts in pieces.items()}
        self.ranks, self.exchange, self.weighing, self.wire = ranks, exchange, weighing, wire
        self._arriving: list[Callable[[], None]] = []
        self._largest: dict[str, list[float | Tensor]] = {}  # of tables apart: numbers no smaller than their gradients
        self._readers: dict[str, RankLookup] = {}

    def __reduce__(self) -> tuple:
        raise TypeError("tables that lie on several ranks cannot be copied; copy the model before hybridrec.shard")

    @abstractmethod
    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> RankLookup:
        """What looks up these features on all ranks."""

    @abstractmethod
    def read(self, lookup: Any, ids: Tensor) -> Tensor:
        """The rows of ids, by the lookup of their table."""

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient; every rank asks, each for its own ids."""
        if name not in self._readers:
            self._readers[name] = self.lookup_fn((FeatureSpec(name, name, "none"),))
        lookup, dtype = self._readers[name], self.stores[name].dtype
        return lambda ids: self.read(lookup, ids.contiguous()).to(dtype)

    # -- the queue ------------------------------------------------------------------------------------------

    def expect(self, land: Callable[[], None]) -> None:
        """Gradients are on their way; `land` waits for them and queues them."""
        self._arriving.append(land)

    def land(self) -> None:
        """Wait for gradients that are on their way, and queue them."""
        arriving, self._arriving = self._arriving, []
        for land in arriving:
            land()

    def pending(self, name: str) -> int:
        self.land()
        return super().pending(name)

    def waiting(self) -> set[str]:
        self.land()
        return super().waiting()

    def discard(self, names: Iterable[str]) -> None:
        self.land()
        super().discard(names)

    def finite(self, names: Iterable[str]) -> bool:
        self.land()
        return not self._sum(float(not super().finite(names)))

    # -- rows of which no rank has all columns --------------------------------------------------------------

    @cached_property
    def apart(self) -> frozenset[str]:
        """Tables of whose rows no rank has all columns."""
        return frozenset(name for name, parts in self.pieces.items() if len(parts) > 1)

    @cached_property
    def sums(self) -> ColumnSums:
        """Adds up numbers of such rows."""
        holders = {name: [part.holders[0] for part in self.pieces[name]] for name in self.apart}
        return ColumnSums(self.ranks.rank, self.ranks.world, holders, self.send_sums)

    @abstractmethod
    def send_sums(self, message: Tensor, sizes: Sequence[int]) -> Tensor:
        """So many numbers to each rank; those of all ranks."""

    def saw(self, largest: float | Tensor, tables: Iterable[str]) -> None:
        """Gradients have come for these tables, none larger than that from any rank; inf where not all are finite."""
        for name in self.apart.intersection(tables):
            self._largest.setdefault(name, []).append(largest)

    def _let_go(self, calls: Iterable[QueuedCall], tables: set[str]) -> None:
        super()._let_go(calls, tables)
        for name in tables:
            self._largest.pop(name, None)

    def wants_whole(self, name: str, step: RowStep) -> bool:
        """Whether rows of a table must be seen whole. A row with a gradient that is not finite stays as it is, also in
        columns where it would be, so all holders must know of it."""
        if name not in self.apart:
            return False
        if step.clip_row_norm < math.inf or any(column.per_row for column in step.rule.state):
            return True
        return not max(map(float, self._largest.get(name, [0.0]))) * max(1.0, step.grad_scale) < LARGE

    # -- the step -------------------------------------------------------------------------------------------

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        self.land()
        mine = [name for name in names if self.stores[name].share.saves]  # copies count once
        norm = super().norm(mine, None if steps is None else {name: steps[name] for name in mine})
        return math.sqrt(self._sum(norm**2))

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        strict = {name for name, step in steps.items() if step.nan == "raise"}
        if not strict:
            return
        error = None
        try:
            super().refuse(steps)
        except FloatingPointError as found:
            error = found
        if self._sum(float(error is not None)):
            raise error or FloatingPointError(
                f"another rank has gradients of {', '.join(sorted(strict))} that are not finite; nothing was changed"
            )

    def _sum(self, value: float) -> float:
        """Over all ranks."""
        return float(self.ranks.sum(torch.tensor([value], dtype=torch.float64)))


class ShardedGroup(OverRanks, TableGroup):
    """Tables in native memory."""

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Any:
        return ShardedLookup(self, features, remedy)

    def read(self, lookup: Any, ids: Tensor) -> Tensor:
        _, (rows,) = lookup.one(ids, ids.new_empty(0), None, 1, len(ids), train=False)
        return rows

    def send_sums(self, message: Tensor, sizes: Sequence[int]) -> Tensor:
        return self.exchange.vectors(message, sizes, sizes, "sums").wait()

    def whole_rows(self, calls: list[QueuedCall], steps: Mapping[str, RowStep]) -> Mapping[str, _native.WholeRows]:
        """What the columns of all ranks add up to, where a step needs to know."""
        wanted = {name: step for name, step in steps.items() if self.wants_whole(name, step)}
        if not wanted:
            return {}
        here = {name: step for name, step in wanted.items() if not self.stores[name].share.empty}
        dims = [store.table.dim for store in self.stores.values()]
        found = self._update.measure([call.work for call in calls], self._native_steps(here), dims)
        rows = {name: each for name, each in zip(self.names, found, strict=True) if name in here}
        parts = {name: torch.from_numpy(rows[name].sums())[:, : sums_of(step)] for name, step in here.items()}
        for name, whole in self.sums.add_up(parts).items():
            parts[name].copy_(whole)
        return rows
