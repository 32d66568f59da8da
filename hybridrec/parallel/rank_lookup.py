"""RankLookup: what lookups over several ranks have in common, wherever rows lie.

A block becomes a flight: ids go to the ranks that hold their rows, vectors come back. Flights may begin before their
lookup (`ahead.py`). Files for CPUs are beside this one, those for GPUs in `gpu/`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hybridrec.embedding.out_of_range import out_of_range_error
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.embedding.table import Table
from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN, TRAIN_ONCE
from hybridrec.parallel.ranks import names_of
from hybridrec.parallel.request import BadOffsets, OutOfRange
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.weighing import share_of
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_group import OverRanks

STOPPED = -1  # in place of a size: the rank cannot go on
SIZES = 4  # numbers that a rank tells each other one: a size, rows of its batch, their weight, kind of id weights
PLAIN, WEIGHTED, LEARNED = 0, 1, 2  # kinds of id weights: none, given, with a gradient


class RankWay(Protocol):
    """The routes of a lookup with what follows them."""

    routes: Routes
    sequences: list[int]  # parts that are not pooled


class RankFlight(Protocol):
    """One block on its way."""

    way: Any
    share: float


def mode_of(train: bool) -> int:
    """Whether rows are admitted, and stay for a gradient."""
    return EVAL if not train else TRAIN if torch.is_grad_enabled() else TRAIN_ONCE


class RankLookup(ABC):
    """Looks up features of tables on several ranks: a block to the pooled features side by side, and the sequences.

    Every rank calls it, with its own block.
    """

    anchor: Tensor  # whose only purpose is to require a gradient

    def __init__(self, group: OverRanks, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        self.group, self.features, self.remedy = group, features, remedy
        self.trained = any(f.table in group.handles for f in features)
        self.tables: dict[str, Table] = {name: store.table for name, store in group.stores.items()}
        self._ways: dict[bool, Any] = {}
        self._picks: dict[tuple[str, ...], tuple[int, ...]] = {}

    def way(self, pooling: bool) -> Any:
        """The way with or without holders that pool."""
        if pooling not in self._ways:
            self._ways[pooling] = self.make_way(self.routes(pooling))
        return self._ways[pooling]

    def routes(self, pooling: bool) -> Routes:
        """How ids travel from this rank."""
        group = self.group
        return Routes(self.features, group.pieces, self.tables, group.ranks.rank, group.ranks.world, pooling)

    @abstractmethod
    def make_way(self, routes: Routes) -> RankWay:
        """What follows the routes."""

    @abstractmethod
    def ids_of(self, block: IdBlock) -> Any:
        """The block as `fly` takes it."""

    @abstractmethod
    def fly(self, ids: Any, weight: float) -> Any:
        """Tell all ranks which ids are wanted of them, and hear theirs; `weight` is what the batch counts for."""

    @abstractmethod
    def start(self, flight: Any, mode: int) -> None:
        """Look up what all ranks have asked for, and send it."""

    @abstractmethod
    def pooled(self, anchor: Tensor, weights: Tensor | None, flight: Any, mode: int) -> Sequence[Tensor]:
        """The pooled features side by side, then the parts that are not pooled."""

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        return self._run(self._flight(block), block.weights, train)

    def prepare(self, block: IdBlock, weight: float | None, train: bool = True) -> None:
        """Send the ids ahead: a lookup of this very block must follow, as on all other ranks."""
        self.group.exchange.ahead.begin(self, block, float(block.batch_size) if weight is None else weight)

    def forget(self) -> None:
        """What was prepared, and not looked up yet, will not be."""
        self.group.exchange.ahead.forget(self)

    def begin(self, block: IdBlock, train: bool) -> None:
        """Have vectors come while something else is done: a lookup of this very block must follow."""
        flight = self._flight(block)
        self.start(flight, mode_of(train))
        self.group.exchange.ahead.keep(self, block, flight)

    def _flight(self, block: IdBlock) -> Any:
        flight = self.group.exchange.ahead.taken(self, block)
        return self.now(self.ids_of(block), block.batch_size) if flight is None else flight

    def now(self, ids: Any, batch: int) -> Any:
        """A flight that nobody has begun before."""
        return self.group.exchange.ahead.now(self, ids, self.group.weighing.weight_of(batch))

    def _run(self, flight: Any, weights: Tensor | None, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        mode = mode_of(train)
        if mode == TRAIN:
            self.group.weighing.last = flight.share
        anchor = self.anchor if torch.is_grad_enabled() else self.anchor.detach()
        flat, *parts = self.pooled(anchor, weights, flight, mode)
        return flat, self._sequences(flight.way, parts)

    def _sequences(self, way: RankWay, parts: Sequence[Tensor]) -> list[Tensor]:
        """One tensor per feature that is not pooled; its columns may come from several pieces."""
        found: dict[int, list[Tensor]] = {}
        for place, part in zip(way.sequences, parts, strict=True):
            found.setdefault(way.routes.parts[place].feature, []).append(part)
        return [pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1) for pieces in found.values()]

    def pick(self, block: IdBlock) -> tuple[int, ...]:
        """The places of the features among those of a block."""
        if block.names not in self._picks:
            self._picks[block.names] = tuple(block.names.index(feature.name) for feature in self.features)
        return self._picks[block.names]

    def refusal(self, wrong: OutOfRange | BadOffsets) -> ValueError:
        """What to raise for ids or offsets of this rank."""
        if isinstance(wrong, OutOfRange):
            table = self.tables[wrong.feature.table]
            return out_of_range_error(table, wrong.feature.name, wrong.position, wrong.value, self.remedy)
        return ValueError(
            f"offsets of feature {wrong.feature.name!r} must not decrease and must end with its ids, but row "
            f"{wrong.row} starts at {wrong.start}"
        )


def fed_tables(
    routes: Routes, sequences: Sequence[int], flat: Tensor | None, grads: Sequence[Tensor | None]
) -> set[str]:
    """The tables that a gradient has come for."""
    pooled = {f.table for f in routes.features if f.combiner != "none"} if flat is not None else set()
    found = zip((routes.parts[place] for place in sequences), grads, strict=True)
    return pooled | {part.piece.table for part, grad in found if grad is not None}


# -- what ranks tell each other before ids ------------------------------------------------------------------------


def sizes_line(size: int, batch: int, weight: float, weights: Tensor | None) -> list[int]:
    """What a rank tells another one before its message of ids."""
    bits = struct.unpack("<q", struct.pack("<d", weight))[0]
    kind = PLAIN if weights is None else LEARNED if weights.requires_grad else WEIGHTED
    return [size, batch, bits, kind]


def check_told(told: Tensor) -> None:
    """Raise where another rank has stopped, or has another kind of weights."""
    stopped = [rank for rank, line in enumerate(told.tolist()) if line[0] == STOPPED]
    if stopped:
        raise RuntimeError(f"rank {stopped[0]} has ids that cannot be looked up, and has stopped; its error names them")
    kinds = told[:, 3].tolist()
    if len({kind == LEARNED for kind in kinds}) > 1:
        raise ValueError(
            f"weights of ids take a gradient on {names_of([r for r, kind in enumerate(kinds) if kind == LEARNED])} "
            "and on no other; let them take one on all ranks, or on none"
        )


def told_share(told: Tensor, weight: float) -> float:
    """This rank's share of what all batches count for."""
    return share_of(weight, told[:, 2].contiguous().view(torch.float64).tolist())
