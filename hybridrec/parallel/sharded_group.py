"""ShardedGroup: tables that lie on several ranks, updated together."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.queue import FeatureSpec, GradientQueue
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.parallel.apart import refuse_clipping, refuse_rule
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.rank_lookup import RankLookup
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.sharded_lookup import ShardedLookup
from hybridrec.parallel.weighing import Weighing


class OverRanks(GradientQueue[Any]):
    """This rank's shares of tables, with one queue of gradients from all ranks: what wraps a group of one process.

    `pieces` says for each table who holds what. Gradients arrive after their backward call has returned; whoever asks
    for the queue waits for them. Norms and checks are those of the whole tables: every rank asks for them.
    """

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

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        refuse_rule(self.pieces, name, rule, owner)
        super().claim(name, rule, owner)

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        refuse_clipping(self.pieces, steps)
        super().refuse(steps)

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Any:
        return ShardedLookup(self, features, remedy)

    def read(self, lookup: Any, ids: Tensor) -> Tensor:
        _, (rows,) = lookup.one(ids, ids.new_empty(0), None, 1, len(ids), train=False)
        return rows
