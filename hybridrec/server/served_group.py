"""ServedGroup: tables that lie on servers, updated together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.queue import FeatureSpec, GradientQueue, QueuedCall
from hybridrec.optim.rule import RowStep
from hybridrec.parallel.exchange import Exchange
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.routes import counts
from hybridrec.parallel.schemes import Piece
from hybridrec.parallel.weighing import Weighing
from hybridrec.server.client import Pushed
from hybridrec.server.course import Course, Sent
from hybridrec.server.flights_ahead import FlightsAhead
from hybridrec.server.push_draft import PushDraft
from hybridrec.server.remote_store import RemoteStore
from hybridrec.server.served_lookup import ServedFlight, ServedLookup
from hybridrec.server.summed_norm import Part, squares


class ServedGroup(GradientQueue[RemoteStore]):
    """Tables on servers with one queue of gradients: lookups fill it in their backward, a step pushes it.

    Whoever updates rows is on the servers, so a step returns before its rows have changed. All row optimizers of the
    group together make one push: it goes when each has taken its step, or with the next training lookup.
    """

    prepares = True  # ids may be sent ahead of their lookup

    def __init__(
        self,
        stores: Mapping[str, RemoteStore],
        trainable: set[str],
        course: Course,
        ranks: Ranks,
        exchange: Exchange,
        weighing: Weighing,
    ) -> None:
        super().__init__(stores, trainable)
        self.course, self.ranks, self.exchange, self.weighing = course, ranks, exchange, weighing
        servers = tuple(range(course.servers))
        self.pieces = {
            name: (Piece(name, servers, 0, store.table.dim, served=True),) for name, store in self.stores.items()
        }
        self.order = in_order(self.stores)
        self.number_of = {name: number for number, name in enumerate(self.order)}
        self.ahead = FlightsAhead(self)
        counting = {name for name, store in self.stores.items() if counts(store.table)}
        self._draft = PushDraft(self.number_of, counting, course.servers)
        self._done: set[str] = set()  # tables that have had their step since the last push
        self._awaited = -1  # the step in which rows were looked up for a gradient
        for name, store in self.stores.items():
            store.group = self
            assert name == store.table.name

    def __reduce__(self) -> tuple:
        raise TypeError("tables that lie on servers cannot be copied; copy the model before hybridrec.shard")

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> ServedLookup:
        """What looks up these features on the servers."""
        return ServedLookup(self, features, remedy)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient; each trainer asks for itself."""
        return self.stores[name].lookup

    # -- lookups --------------------------------------------------------------------------------------------

    def look(self, flight: ServedFlight, train: bool) -> Sent:
        """Ask all servers for what a block needs."""
        if self._done:
            self.flush()
        return self.course.look(flight.asked(), train)

    @property
    def next_step(self) -> int:
        """The step of the lookup that comes next; the present one where it has not begun."""
        return self.course.step + (self._awaited == self.course.step)

    def looked_up(self, lookup: ServedLookup, gradients: bool) -> None:
        """A training lookup is done: its step goes on if a gradient may come, or is over."""
        if gradients and lookup.trained:
            self._awaited = self.course.step
        elif self._awaited != self.course.step:
            self.flush()

    # -- the queue ------------------------------------------------------------------------------------------

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite, those of all trainers."""
        wanted = set(names)
        bad = any(
            not np.isfinite(part).all()
            for call in self._calls(wanted)
            for name in call.left & wanted
            for server in range(self.course.servers)
            for part in call.work.of(name, server)[1:]
        )
        return not self._any(bad)

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        """The L2 norm of the row gradients of these tables together, summed over trainers, each times its grad_scale.

        All trainers ask for it. Where each push is an update of its own, it is that of the sum all the same: that of
        the step without servers.
        """
        wanted = list(names)
        found = squares([self._whole(name) for name in wanted], self.exchange)
        scales = [steps[name].grad_scale if steps else 1.0 for name in wanted]
        total = sum(scale**2 * each for scale, each in zip(scales, found, strict=True))
        if self.ranks.world > 1:
            total = float(self.ranks.sum(torch.tensor([total], dtype=torch.float64)))
        return math.sqrt(total) if math.isfinite(total) else math.inf

    def _whole(self, name: str) -> Part:
        """The queued gradients of a table, for all servers; not those of ids that were not let in."""
        store = self.stores[name]
        none = np.empty(0, np.int64), np.empty((0, store.dim), np.float32)
        parts = [none, *(part for each in self._draft.summed(name, self._calls({name})) for part in each)]
        ids, gradients = (np.concatenate(each) for each in zip(*parts, strict=True))
        if not store.refuses:
            return ids, gradients
        live = store.live(torch.from_numpy(ids)).numpy()
        return ids[live], gradients[live]

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise if a step that says so would have to leave out rows; changes nothing."""
        strict = [name for name, step in steps.items() if step.nan == "raise"]
        if strict and not self.finite(strict):
            raise FloatingPointError(
                f"tables {', '.join(strict)} have gradients that are not finite; nothing was changed. Find their "
                "cause, or leave such rows out with nan='skip'"
            )

    def _any(self, found: bool) -> bool:
        """Whether it is so on any trainer."""
        return bool(self.ranks.largest(torch.tensor([int(found)])))

    def _calls(self, tables: set[str]) -> list[QueuedCall]:
        calls = [call for call in self._queue if call.left & tables]
        for call in calls:
            call.check()
        return calls

    # -- the step -------------------------------------------------------------------------------------------

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Give the gradients of these tables to the push of this step, and empty their queues."""
        self.refuse(steps)
        if not self._done.isdisjoint(steps):
            self.flush()  # that was another step
        calls = self._calls(set(steps))
        for name, step in steps.items():
            self.stores[name].check_rule(step)
        self._draft.add(calls, steps)
        self._let_go(calls, set(steps))
        self.over(list(steps))

    def over(self, names: Sequence[str]) -> None:
        """The step of these tables is over."""
        if not self._done.isdisjoint(names):
            self.flush()  # that was another step
        self._done.update(names)
        if {name for name in self.handles if self._owner(name) is not None} <= self._done:
            self.flush()

    def flush(self) -> None:
        """Push what was given; the next step begins."""
        given, gradients, self._done = self._draft.tables, self._draft.take(), set()
        for answer in self.course.push(gradients):
            answer.add_done_callback(lambda done: self._acknowledged(done, given))
        self.ahead.send()

    def drain(self) -> None:
        """Until all that this trainer has pushed is applied."""
        if self._done:
            self.flush()
        self.course.session.drain()

    def settle(self) -> None:
        """Until all that was pushed is applied, by all trainers."""
        self.drain()
        if self.ranks.world > 1:
            self.ranks.all_told(self.course.step)

    def _acknowledged(self, done: Future[Pushed], given: list[str]) -> None:
        if done.exception() is None:
            for name in given:
                self.stores[name].nan_rows += int(done.result().not_finite[self.number_of[name]])


def in_order(stores: Mapping[str, RemoteStore]) -> list[str]:
    """The tables as servers know them: by their width, as messages have them."""
    return sorted(stores, key=lambda name: stores[name].table.dim)
