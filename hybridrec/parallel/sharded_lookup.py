"""ShardedLookup: the lookup of features whose tables lie on several ranks.

Forward: distinct ids go to the ranks that hold their rows, and bags to those that pool them (`request.py`); each rank
looks up what it was asked for (`answer.py`); vectors come back, and one native call pools them (`pooled_answers.py`).
Backward: one native call sums gradients by the vectors that had come; they go back the same way, and wait for the step
of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN
from hybridrec.parallel.answer import Answers
from hybridrec.parallel.host_lookup import HostLookup
from hybridrec.parallel.rank_lookup import SIZES, STOPPED, check_told, sizes_line, told_share
from hybridrec.parallel.request import COPIES, MARK, BadOffsets, Ids, OutOfRange, Request
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.way import Flight, WayOfRanks
from hybridrec.parallel.wire_types import on_wire, received

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_group import ShardedGroup


class ShardedLookup(HostLookup):
    """The lookup of tables in native memory."""

    group: ShardedGroup

    def make_way(self, routes: Routes) -> WayOfRanks:
        return WayOfRanks(routes, self.group)

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
        sizes, wire, exchange = answers.floats, group.wire.forward, group.exchange
        if wire == "float32":
            outgoing = exchange.outgoing(sizes, request.floats)
            fault = answers.look_up(outgoing.parts, mode != EVAL)
            flight.vectors = exchange.posted(outgoing, request.floats)
        else:
            vectors = self.recycled(torch.float32, sum(sizes))
            fault = answers.look_up(vectors.split(sizes), mode != EVAL)
            flight.vectors = exchange.vectors(on_wire(vectors, wire), sizes, request.floats)
        if flight.way.holdings.growing and mode != EVAL:
            group.looked_up(flight.way.holdings.growing, mode == TRAIN)
        if fault is not None:  # others see the mark of it in what they get
            flight.vectors.wait()
            raise _explained(group, fault)

    def runs(self, flight: Flight, mode: int) -> list[Tensor]:
        if flight.vectors is None:
            self.start(flight, mode)
        assert flight.vectors is not None
        runs = self.by_width(flight, received(flight.vectors.wait(), self.group.wire.forward))
        self._check_marks(flight, runs[0])
        return runs

    def _check_marks(self, flight: Flight, first: Tensor) -> None:
        """Raise where a rank could not answer; `first` are the vectors of the first width."""
        marks = first.view(-1, flight.way.routes.widths[0])[flight.request.marks, 0].tolist()
        if any(marks):
            rank = next(rank for rank, mark in enumerate(marks) if mark)
            raise RuntimeError(f"rank {rank} could not look up what it was asked for, and has stopped; see its error")

    # -- gradients --------------------------------------------------------------------------------------------

    def send_gradients(self, flight: Flight, sums: list[Tensor], tables: set[str], marked: bool) -> None:
        """Gradients by width, laid out as the vectors were, to the ranks that those came from; copies go to all."""
        group = self.group
        if not group.apart.isdisjoint(tables):
            self._tell_largest(flight, sums)
        message, to = self._message(flight, sums)
        of = flight.answers.gradient_floats
        wire = group.wire.gradient
        arriving = group.exchange.gradients(on_wire(message, wire), to, of)

        def land() -> None:
            gradients = [received(part, wire) for part in arriving.parts()]
            flight.answers.queue(gradients, tables, marked)
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


def _explained(group: ShardedGroup, fault: tuple[str, int, int, int, str]) -> Exception:
    from hybridrec.embedding.hash_store import full_error

    what, number, _, _, message = fault
    if what == "capacity":
        return full_error(group.stores[group.names[number]].table, message)
    return AssertionError(f"ids were not checked before they were sent: {fault}")
