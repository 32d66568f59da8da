"""ServedLookup: the lookup of features whose tables lie on servers.

Forward: distinct ids go to the servers that have their rows, one message to each for all tables; vectors come back,
and one native call pools them, as with tables on several ranks. Backward: one native call sums gradients by the vectors
that had come; they wait here for the step, which pushes them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN
from hybridrec.parallel.host_lookup import HostLookup
from hybridrec.parallel.rank_lookup import SIZES, STOPPED, check_told, mode_of, sizes_line, told_share
from hybridrec.parallel.request import ROWS, BadOffsets, Ids, OutOfRange, Request
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.unfed import unmoved
from hybridrec.parallel.way import Way
from hybridrec.server.course import Asked, Sent
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.server.served_group import ServedGroup


class WayToServers(Way):
    """The routes of a lookup, and the numbers that servers know its tables by."""

    def __init__(self, routes: Routes, group: ServedGroup) -> None:
        super().__init__(routes)
        self.names = [unit.piece.table for unit in routes.rows.units]
        self.numbers = np.array([group.number_of[name] for name in self.names], dtype=np.int64)
        assert (np.diff(self.numbers) > 0).all(), "servers know tables in the order of their width"


class ServedFlight:
    """One block on its way: the request, and what was sent of it."""

    def __init__(self, way: WayToServers, ids: Ids, request: Request, share: float) -> None:
        self.way, self.ids, self.request, self.share = way, ids, request, share
        self._words = request.pack().numpy()
        self._ends = np.cumsum(request.words)
        self.sent: Sent | None = None

    def asked(self) -> list[Asked]:
        """What each server is asked for."""
        return [self.asked_of(server) for server in range(self.request.row_counts.shape[1])]

    def asked_of(self, server: int) -> Asked:
        """What one server is asked for."""
        return Asked(self.way.numbers, self.request.row_counts[:, server], self.ids_for(server))

    def ids_for(self, server: int) -> np.ndarray:
        """The ids that a server is asked for, one table after another."""
        end = int(self._ends[server])
        return self._words[end - int(self.request.row_counts[:, server].sum()) : end]


class ServedLookup(HostLookup):
    """The lookup of tables on servers; where there are several trainers, each calls it with its own block."""

    group: ServedGroup
    early = True  # it may begin before others that are looked up with it

    def routes(self, pooling: bool) -> Routes:
        return Routes(self.features, self.group.pieces, self.tables, 0, self.group.course.servers, pooling=False)

    def make_way(self, routes: Routes) -> WayToServers:
        return WayToServers(routes, self.group)

    # -- ids --------------------------------------------------------------------------------------------------

    def fly(self, ids: Ids, weight: float) -> ServedFlight:
        exchange, way = self.group.exchange, self.way(False)
        try:
            request = Request(way.routes, ids)
        except (OutOfRange, BadOffsets) as wrong:
            exchange.sizes(torch.full((exchange.world, SIZES), STOPPED, dtype=torch.int64))
            raise self.refusal(wrong) from None
        if exchange.world == 1:
            return ServedFlight(way, ids, request, 1.0)
        told = exchange.sizes(torch.tensor([sizes_line(0, ids.batch, weight, ids.weights)] * exchange.world))
        check_told(told)
        return ServedFlight(way, ids, request, told_share(told, weight))

    def prepare(self, block: IdBlock, weight: float | None, train: bool = True) -> None:
        """Make the ids distinct ahead of the lookup of this very block; with staleness, also send them."""
        weight, ahead = float(block.batch_size) if weight is None else weight, self.group.exchange.ahead
        before = ahead.waiting(self)
        begun = ahead.begin(self, block, weight)
        if train and self.group.course.staleness:
            self.group.ahead.add(self, begun, before)

    def forget(self) -> None:
        super().forget()
        self.group.ahead.forget(self)

    def begin(self, block: IdBlock, train: bool) -> None:
        flight = self._flight(block)
        self.start(flight, mode_of(train))
        self.group.exchange.ahead.keep(self, block, flight)

    # -- vectors ----------------------------------------------------------------------------------------------

    def start(self, flight: ServedFlight, mode: int) -> None:
        self.group.ahead.start(flight, mode != EVAL)

    def runs(self, flight: ServedFlight, mode: int) -> list[Tensor]:
        self.start(flight, mode)
        assert flight.sent is not None
        vectors = [torch.from_numpy(each) for each in flight.sent.vectors()]
        if mode != EVAL:
            self.group.looked_up(self, mode == TRAIN)
        return self.by_width(flight, vectors[0] if len(vectors) == 1 else torch.cat(vectors))

    def send_gradients(self, flight: ServedFlight, sums: list[Tensor], tables: set[str], marked: bool) -> None:
        self.group.queue(ServedGradients(flight, sums, marked), (sums,), tables)


class ServedGradients:
    """The gradients of one backward call, summed by the vectors that had come; some rows may be `marked` (`unfed`)."""

    def __init__(self, flight: ServedFlight, sums: Sequence[Tensor], marked: bool) -> None:
        way, request = flight.way, flight.request
        self._flight, self._sums, self.marked = flight, sums, marked
        self._units = {name: unit for unit, name in enumerate(way.names)}
        self._bases = request.row_bases()
        self._starts = np.cumsum(request.row_counts, axis=0) - request.row_counts

    @property
    def tables(self) -> Set[str]:
        """Those that the call has looked up."""
        return self._units.keys()

    def for_server(self, server: int) -> tuple[Asked, np.ndarray]:
        """Ids of all tables for a server as the lookup had them, and their gradients, flat, from where they lie."""
        way, request = self._flight.way, self._flight.request
        firsts, rows = request.firsts[server, ROWS].tolist(), request.segments[server, ROWS].tolist()
        runs = [
            run.numpy()[first * width : (first + count) * width]
            for run, first, count, width in zip(self._sums, firsts, rows, way.routes.widths, strict=True)
        ]
        return self._flight.asked_of(server), runs[0] if len(runs) == 1 else np.concatenate(runs)

    def of(self, name: str, server: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 [n] and gradients float32 [n, dim] of a table for a server; an id may be there more than once."""
        unit, routes = self._units[name], self._flight.way.routes
        count, base = int(self._flight.request.row_counts[unit, server]), int(self._bases[unit, server])
        start, place = int(self._starts[unit, server]), int(routes.rows.classes[unit])
        ids = self._flight.ids_for(server)[start : start + count]
        rows = self._sums[place].view(-1, routes.widths[place])[base : base + count]
        if not self.marked:
            return ids, rows.numpy()
        moved = ~unmoved(rows)
        return ids[moved.numpy()], rows[moved].numpy()
