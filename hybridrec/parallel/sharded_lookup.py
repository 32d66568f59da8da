"""ShardedLookup: the lookup of features whose tables lie on several ranks.

Forward: distinct ids go to the ranks that hold their rows, and bags to those that pool them (`request.py`); each rank
looks up what it was asked for (`answer.py`); vectors come back, and one native call pools them (`pooled_answers.py`).
Backward: one native call sums gradients by the vectors that had come; they go back the same way, and wait for the step
of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN
from hybridrec.parallel.answer import Answers
from hybridrec.parallel.pooled_answers import PooledAnswers
from hybridrec.parallel.rank_lookup import SIZES, STOPPED, RankLookup, check_told, sizes_line, told_share
from hybridrec.parallel.request import COPIES, MARK, BadOffsets, Ids, OutOfRange, Request
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.way import Flight, Way
from hybridrec.parallel.wire_types import on_wire, received
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_group import ShardedGroup


class ShardedLookup(RankLookup):
    """The lookup of tables in native memory."""

    group: ShardedGroup

    def __init__(self, group: ShardedGroup, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        super().__init__(group, features, remedy)
        self.anchor = torch.zeros((), requires_grad=self.trained)
        self._arena = _native.Arena.create()

    def make_way(self, routes: Routes) -> Way:
        return Way(routes, self.group)

    def pooled(self, anchor: Tensor, weights: Tensor | None, flight: Flight, mode: int) -> Sequence[Tensor]:
        return PooledAnswers.apply(anchor, weights, self, flight, mode)  # pyright: ignore[reportReturnType]

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature; hotness is -1 where there are offsets."""
        ids = Ids(values, offsets.view(1, -1), weights, (0, len(values)), (hotness,), (0,), batch_size)
        return self._run(self.now(ids, ids.batch), weights, train)

    def ids_of(self, block: IdBlock) -> Ids:
        hotness = tuple(-1 if hot is None else hot for hot in block.hotness)
        weights = None if block.weights is None else block.weights.contiguous()
        starts = tuple(block.starts)
        return Ids(block.values, block.offsets, weights, starts, hotness, self.pick(block), block.batch_size)

    # -- ids --------------------------------------------------------------------------------------------------

    def fly(self, ids: Ids, weight: float) -> Flight:
        exchange = self.group.exchange
        way = self.way(ids.weights is None or not ids.weights.requires_grad)
        try:
            request = Request(way.routes, ids)
        except (OutOfRange, BadOffsets) as wrong:
            exchange.sizes(torch.full((exchange.world, SIZES), STOPPED, dtype=torch.int64))
            raise self.refusal(wrong) from None
        lines = [sizes_line(size, ids.batch, weight, ids.weights) for size in request.words]
        told = exchange.sizes(torch.tensor(lines))
        check_told(told)
        words, batches, _, kinds = told.unbind(1)
        arriving = exchange.ids(request.pack(), request.words, words.tolist())
        sent = zip(words.tolist(), batches.tolist(), kinds.tolist(), strict=True)
        answers = Answers(way.holdings, arriving.wait(), list(sent))
        return Flight(way, ids, request, answers, told_share(told, weight))

    # -- vectors ----------------------------------------------------------------------------------------------

    def start(self, flight: Flight, mode: int) -> None:
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
        message, to = self._message(flight, sums)
        of = flight.answers.gradient_floats
        wire = group.wire.gradient
        arriving = group.exchange.vectors(on_wire(message, wire), to, of, "gradients")

        def land() -> None:
            flight.answers.queue(received(arriving.wait(), wire), tables)

        group.expect(land)

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


def _explained(group: ShardedGroup, fault: tuple[str, int, int, int, str]) -> Exception:
    from hybridrec.embedding.hash_store import full_error

    what, number, _, _, message = fault
    if what == "capacity":
        return full_error(group.stores[group.names[number]].table, message)
    return AssertionError(f"ids were not checked before they were sent: {fault}")
