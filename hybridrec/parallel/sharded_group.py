"""ShardedGroup: tables that lie on several ranks, updated together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.native_store import NativeStore
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.sharded_lookup import ShardedLookup
from hybridrec.parallel.weighing import Weighing


class ShardedGroup(TableGroup):
    """This rank's shares of tables, with one queue of gradients from all ranks.

    `pieces` says for each table who holds what. Gradients arrive after their backward call has returned; whoever asks
    for the queue waits for them. Norms and checks are those of the whole tables: every rank asks for them.
    """

    def __init__(
        self,
        stores: Mapping[str, NativeStore],
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
        self._readers: dict[str, ShardedLookup] = {}

    def __reduce__(self) -> tuple:
        raise TypeError("tables that lie on several ranks cannot be copied; copy the model before hybridrec.shard")

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Any:
        return ShardedLookup(self, features, remedy)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient; every rank asks, each for its own ids."""
        if name not in self._readers:
            self._readers[name] = ShardedLookup(self, (FeatureSpec(name, name, "none"),))
        lookup, dtype = self._readers[name], self.stores[name].dtype

        def read(ids: Tensor) -> Tensor:
            ids = ids.contiguous()
            _, (rows,) = lookup.one(ids, ids.new_empty(0), None, 1, len(ids), train=False)
            return rows.to(dtype)

        return read

    # -- who updates what -----------------------------------------------------------------------------------

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        if self._apart(name) and any(column.per_row for column in rule.state):
            raise ValueError(
                f"table {name!r} is split by columns, and {type(owner).__name__} keeps one number for a whole row; pin "
                "the table to another scheme (row, table, replicated), or give it an optimizer such as Adagrad"
            )
        super().claim(name, rule, owner)

    def _apart(self, name: str) -> bool:
        """Whether the columns of a row lie on several ranks."""
        return len(self.pieces[name]) > 1

    # -- the queue ------------------------------------------------------------------------------------------

    def expect(self, land: Callable[[], None]) -> None:
        """Gradients are on their way; `land` waits for them and queues them."""
        self._arriving.append(land)

    def settle(self) -> None:
        """Wait for gradients that are on their way."""
        arriving, self._arriving = self._arriving, []
        for land in arriving:
            land()

    def pending(self, name: str) -> int:
        self.settle()
        return super().pending(name)

    def waiting(self) -> set[str]:
        self.settle()
        return super().waiting()

    def discard(self, names: Iterable[str]) -> None:
        self.settle()
        super().discard(names)

    def finite(self, names: Iterable[str]) -> bool:
        self.settle()
        return not self._sum(float(not super().finite(names)))

    # -- the step -------------------------------------------------------------------------------------------

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        self.settle()
        mine = [name for name in names if self.stores[name].share.saves]  # copies count once
        norm = super().norm(mine, None if steps is None else {name: steps[name] for name in mine})
        return math.sqrt(self._sum(norm**2))

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        clipped = [name for name, step in steps.items() if step.clip_row_norm < math.inf and self._apart(name)]
        if clipped:
            raise ValueError(
                f"table {clipped[0]!r} is split by columns, and clip_row_norm needs the norm of a whole row; pin the "
                "table to another scheme (row, table, replicated), or leave clip_row_norm out"
            )
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
