"""ShardedLookup: the lookup of features whose tables lie on several ranks.

Forward: distinct ids go to the ranks that hold their rows, and bags to those that pool them (`request.py`); each rank
looks up what it was asked for (`answer.py`); vectors come back, and one native call pools them (`pooled_answers.py`).
Backward: one native call sums gradients by the vectors that had come; they go back the same way, and wait for the step
of their rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.out_of_range import out_of_range_error
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN, TRAIN_ONCE
from hybridrec.parallel.answer import Answers
from hybridrec.parallel.pooled_answers import PooledAnswers
from hybridrec.parallel.ranks import names_of
from hybridrec.parallel.request import COPIES, MARK, BadOffsets, Ids, OutOfRange, Request
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.way import Flight, Way
from hybridrec.parallel.weighing import share_of
from hybridrec.parallel.wire_types import on_wire, received
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_group import ShardedGroup

STOPPED = -1  # in place of a size: the rank cannot go on
SIZES = 4  # numbers that a rank tells each other one: words of ids, rows of its batch, their weight, kind of id weights
PLAIN, WEIGHTED, LEARNED = 0, 1, 2  # kinds of id weights: none, given, with a gradient


def mode_of(train: bool) -> int:
    """Whether rows are admitted, and stay for a gradient."""
    return EVAL if not train else TRAIN if torch.is_grad_enabled() else TRAIN_ONCE


class ShardedLookup:
    """Looks up features of a sharded group: a block to the pooled features side by side, and the sequences.

    Every rank calls it, with its own block.
    """

    def __init__(self, group: ShardedGroup, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        self.group, self.features, self.remedy = group, features, remedy
        self.anchor = torch.zeros((), requires_grad=any(f.table in group.handles for f in features))
        self._arena = _native.Arena.create()
        self._ways: dict[bool, Way] = {}
        self._picks: dict[tuple[str, ...], tuple[int, ...]] = {}

    def way(self, pooling: bool) -> Way:
        """The routes with or without holders that pool."""
        if pooling not in self._ways:
            group = self.group
            tables = {name: store.table for name, store in group.stores.items()}
            routes = Routes(self.features, group.pieces, tables, group.ranks.rank, group.ranks.world, pooling)
            self._ways[pooling] = Way(routes, group)
        return self._ways[pooling]

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        return self._run(self._flight(block), block.weights, train)

    def prepare(self, block: IdBlock, weight: float | None) -> None:
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

    def _flight(self, block: IdBlock) -> Flight:
        flight = self.group.exchange.ahead.taken(self, block)
        return self._now(self.ids_of(block)) if flight is None else flight

    def _now(self, ids: Ids) -> Flight:
        return self.group.exchange.ahead.now(self, ids, self.group.weighing.weight_of(ids.batch))

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature; hotness is -1 where there are offsets."""
        ids = Ids(values, offsets.view(1, -1), weights, (0, len(values)), (hotness,), (0,), batch_size)
        return self._run(self._now(ids), weights, train)

    def ids_of(self, block: IdBlock) -> Ids:
        """The block as requests read it."""
        if block.names not in self._picks:
            self._picks[block.names] = tuple(block.names.index(feature.name) for feature in self.features)
        hotness = tuple(-1 if hot is None else hot for hot in block.hotness)
        weights = None if block.weights is None else block.weights.contiguous()
        pick = self._picks[block.names]
        return Ids(block.values, block.offsets, weights, tuple(block.starts), hotness, pick, block.batch_size)

    # -- ids --------------------------------------------------------------------------------------------------

    def fly(self, ids: Ids, weight: float) -> Flight:
        """Tell all ranks which ids are wanted of them, and hear theirs; `weight` is what the batch counts for."""
        exchange = self.group.exchange
        way = self.way(ids.weights is None or not ids.weights.requires_grad)
        try:
            request = Request(way.routes, ids)
        except (OutOfRange, BadOffsets) as wrong:
            exchange.sizes(torch.full((exchange.world, SIZES), STOPPED, dtype=torch.int64))
            raise self._refusal(wrong) from None
        told = exchange.sizes(_sizes(request.words, ids.batch, weight, _kind(ids.weights)))
        self._check(told)
        words, batches, weights, kinds = told.unbind(1)
        arriving = exchange.ids(request.pack(), request.words, words.tolist())
        share = share_of(weight, weights.contiguous().view(torch.float64).tolist())
        sent = zip(words.tolist(), batches.tolist(), kinds.tolist(), strict=True)
        return Flight(way, ids, request, Answers(way.holdings, arriving.wait(), list(sent)), share)

    def _refusal(self, wrong: OutOfRange | BadOffsets) -> ValueError:
        if isinstance(wrong, OutOfRange):
            table = self.group.stores[wrong.feature.table].table
            return out_of_range_error(table, wrong.feature.name, wrong.position, wrong.value, self.remedy)
        return ValueError(
            f"offsets of feature {wrong.feature.name!r} must not decrease and must end with its ids, but row "
            f"{wrong.row} starts at {wrong.start}"
        )

    def _check(self, told: Tensor) -> None:
        stopped = [rank for rank, line in enumerate(told.tolist()) if line[0] == STOPPED]
        if stopped:
            raise RuntimeError(
                f"rank {stopped[0]} has ids that cannot be looked up, and has stopped; its error names them"
            )
        kinds = told[:, 3].tolist()
        if len({kind == LEARNED for kind in kinds}) > 1:
            raise ValueError(
                f"weights of ids take a gradient on {names_of([r for r, kind in enumerate(kinds) if kind == LEARNED])} "
                "and on no other; let them take one on all ranks, or on none"
            )

    # -- vectors ----------------------------------------------------------------------------------------------

    def _run(self, flight: Flight, weights: Tensor | None, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        mode = mode_of(train)
        if mode == TRAIN:
            self.group.weighing.last = flight.share
        anchor = self.anchor if torch.is_grad_enabled() else self.anchor.detach()
        flat, *parts = PooledAnswers.apply(anchor, weights, self, flight, mode)
        return flat, self._sequences(flight.way, parts)

    def _sequences(self, way: Way, parts: Sequence[Tensor]) -> list[Tensor]:
        """One tensor per feature that is not pooled; its columns may come from several pieces."""
        found: dict[int, list[Tensor]] = {}
        for place, part in zip(way.sequences, parts, strict=True):
            found.setdefault(way.routes.parts[place].feature, []).append(part)
        return [pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1) for pieces in found.values()]

    def start(self, flight: Flight, mode: int) -> None:
        """Look up what all ranks have asked for, and send it."""
        _native.set_threads(torch.get_num_threads())
        group, answers, request = self.group, flight.answers, flight.request
        sizes = answers.floats
        vectors = self.recycled(torch.float32, sum(sizes))
        fault = answers.look_up(vectors, mode != EVAL)
        if flight.way.holdings.growing and mode != EVAL:
            group.looked_up(flight.way.holdings.growing, mode == TRAIN)
        flight.vectors = group.exchange.vectors(on_wire(vectors, group.wire.forward), sizes, request.floats)
        if fault is not None:  # others see the mark of it in what they get
            flight.vectors.wait()
            raise _explained(group, fault)

    def answered(self, flight: Flight, mode: int) -> Tensor:
        """What all ranks have answered, float32."""
        if flight.vectors is None:
            self.start(flight, mode)
        assert flight.vectors is not None
        return received(flight.vectors.wait(), self.group.wire.forward)

    def check_marks(self, flight: Flight, first: Tensor) -> None:
        """Raise where a rank could not answer; `first` are the vectors of the first width."""
        marks = first.view(-1, flight.way.routes.widths[0])[flight.request.marks, 0].tolist()
        if any(marks):
            rank = next(rank for rank, mark in enumerate(marks) if mark)
            raise RuntimeError(f"rank {rank} could not look up what it was asked for, and has stopped; see its error")

    def recycled(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """A tensor in memory that comes back when it goes: touching fresh memory costs more than filling it."""
        if prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        memory = self._arena.take(4 * prod(shape)).view(np.float32 if dtype == torch.float32 else np.int32)
        return torch.from_numpy(memory.reshape(shape))

    def by_width(self, flight: Flight, vectors: Tensor) -> list[Tensor]:
        """Vectors as they came, as one run for each width: a copy, unless there is one width only."""
        routes, request = flight.way.routes, flight.request
        if len(routes.widths) == 1:
            return [vectors]
        runs: list[list[Tensor]] = [[] for _ in routes.widths]
        at = 0
        for rows in request.segments.reshape(-1, len(routes.widths)).tolist():
            for place, (count, width) in enumerate(zip(rows, routes.widths, strict=True)):
                if count:
                    runs[place].append(vectors[at : at + count * width])
                at += count * width
        return [torch.cat(run) if run else vectors[:0] for run in runs]

    # -- gradients --------------------------------------------------------------------------------------------

    def send_gradients(self, flight: Flight, sums: list[Tensor], tables: set[str]) -> None:
        """Gradients by width, laid out as the vectors were, to the ranks that those came from; copies go to all."""
        group = self.group
        if not group.apart.isdisjoint(tables):
            self._tell_largest(flight, sums)
        message, to = self._message(flight, sums)
        of = flight.answers.gradient_floats
        wire = group.wire.gradient
        arriving = group.exchange.vectors(on_wire(message, wire), to, of, "gradients")

        def land() -> None:
            gradients = received(arriving.wait(), wire)
            flight.answers.queue(gradients, tables)
            if not group.apart.isdisjoint(tables):
                group.saw(flight.answers.largest(gradients), tables)

        group.expect(land)

    def _tell_largest(self, flight: Flight, sums: list[Tensor]) -> None:
        """Let the marks in the message be the largest gradient that goes to any rank; inf where one is not finite."""
        ends = torch.stack([end for part in sums if len(part) for end in part.aminmax()])
        largest = ends.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).max()
        sums[0].view(-1, flight.way.routes.widths[0])[flight.request.marks, 0] = largest

    def _message(self, flight: Flight, sums: list[Tensor]) -> tuple[Tensor, list[int]]:
        routes, request, world = flight.way.routes, flight.request, flight.way.routes.world
        if len(routes.widths) == 1 and not len(routes.copied):
            return sums[0], request.floats
        copies = self._pieces(flight, sums, routes.rank, [COPIES])
        parts, to = [], []
        for rank in range(world):
            mine = [*self._pieces(flight, sums, rank, range(MARK + 1)), *copies]
            parts += mine
            to.append(sum(map(len, mine)))
        return (torch.cat(parts) if parts else torch.empty(0)), to

    def _pieces(self, flight: Flight, sums: list[Tensor], rank: int, kinds: Iterable[int]) -> list[Tensor]:
        """The gradients of what came from a rank, in the order in which it came."""
        request, found = flight.request, []
        for kind in kinds:
            for place, width in enumerate(flight.way.routes.widths):
                first, rows = int(request.firsts[rank, kind, place]), int(request.segments[rank, kind, place])
                if rows:
                    found.append(sums[place][first * width : (first + rows) * width])
        return found


def _kind(weights: Tensor | None) -> int:
    return PLAIN if weights is None else LEARNED if weights.requires_grad else WEIGHTED


def _sizes(words: list[int], batch: int, weight: float, kind: int) -> Tensor:
    bits = struct.unpack("<q", struct.pack("<d", weight))[0]
    return torch.tensor([[size, batch, bits, kind] for size in words], dtype=torch.int64)


def _explained(group: ShardedGroup, fault: tuple[str, int, int, int, str]) -> Exception:
    from hybridrec.embedding.hash_store import full_error

    what, number, _, _, message = fault
    if what == "capacity":
        return full_error(group.stores[group.names[number]].table, message)
    return AssertionError(f"ids were not checked before they were sent: {fault}")
