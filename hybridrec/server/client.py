"""Servers: all servers of a job, as one trainer sees them; and Session, what it says to them for training."""

from __future__ import annotations

import itertools
import ssl
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from hybridrec.server.declaration import Declaration
from hybridrec.server.group import Terms
from hybridrec.server.link import DirectLink, Link, then
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.shard import Shard
from hybridrec.server.wire_types import WIRE, on_wire, received

DEADLINE = 30.0  # seconds


class Servers:
    """The links to servers 0, 1, …, in this order.

    >>> servers = Servers.direct([Shard(0, 2), Shard(1, 2)])
    >>> [answer.fields["number"] for answer in servers.ask_all(Kind.HELLO)]
    [0, 1]
    """

    def __init__(self, links: Sequence[Link], deadline: float = DEADLINE) -> None:
        self.links, self.deadline = tuple(links), deadline
        self._numbers = itertools.count(1)

    @staticmethod
    def direct(shards: Sequence[Shard]) -> Servers:
        """Shards of this process, called without a network: for tests, and for a table that fits one machine."""
        return Servers([DirectLink(shard) for shard in shards])

    @staticmethod
    def connect(
        addresses: Sequence[str],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        deadline: float = DEADLINE,
        name: str = "",
    ) -> Servers:
        """Connect to "host:port" of server 0, 1, …; each must be the number that its place says, of as many."""
        from hybridrec.server.channel import Channel

        if not addresses:
            raise ValueError("there are no addresses of servers; give one for each, such as host:7000")
        made: list[Channel] = []
        try:
            for number, address in enumerate(addresses):
                hello = {"token": token or "", "client": name}
                made.append(Channel(number, len(addresses), address, hello, tls, deadline))
            for channel in made:
                channel.wait()
        except BaseException:
            for channel in made:
                channel.close()
            raise
        return Servers(made, deadline)

    @property
    def count(self) -> int:
        return len(self.links)

    def ask(
        self,
        server: int,
        kind: Kind,
        fields: Mapping[str, Any] | None = None,
        buffers: Sequence[np.ndarray] = (),
        *,
        what: str = "",
        deadline: float | None = None,
    ) -> Future[Message]:
        """The answer of one server, to come. Its buffers are bytes: see `Message.array`."""
        request = Message(kind, fields or {}, buffers, next(self._numbers))
        wait = self.deadline if deadline is None else deadline
        return self.links[server].ask(request, wait, what or f"the request {kind.name.lower()}")

    def ask_all(
        self, kind: Kind, fields: Mapping[str, Any] | None = None, buffers: Sequence[np.ndarray] = ()
    ) -> list[Message]:
        """The answers of all servers to the same request."""
        futures = [self.ask(server, kind, fields, buffers) for server in range(self.count)]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End all links; what is on its way fails."""
        for link in self.links:
            link.close()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pushed(NamedTuple):
    """What came of a push, of each table of the group; without staleness, of all trainers' pushes together."""

    again: bool  # it was applied before: no figures
    updated: np.ndarray  # int64 [tables] rows
    not_finite: np.ndarray  # rows left out because their gradient is not finite
    gone: np.ndarray  # ids passed over because they have no row


class Session:
    """One trainer of a session: `session` is a number that all trainers of one start of a job share, larger than that
    of any start before it.

    >>> session = Session(Servers.direct([Shard()]), 1)
    >>> session.attach(0, [Declaration("user", 2, 100)])
    >>> ids = np.array([3, 4])
    >>> session.lookup(0, 0, 0, [0], [2], ids, train=True).result().shape
    (4,)
    """

    def __init__(
        self,
        servers: Servers,
        session: int,
        trainer: int = 0,
        trainers: int = 1,
        *,
        staleness: int = 0,
        wire: str = "float32",
        gradient_wire: str = "float32",
    ) -> None:
        Terms(trainers, staleness, (), wire, gradient_wire).check()
        self.servers, self.session = servers, session
        self.trainer, self.trainers, self.staleness = trainer, trainers, staleness
        self.wire, self.gradient_wire = wire, gradient_wire
        self._once = {trainer: itertools.count(), -1: itertools.count()}
        self._attached: dict[int, Message] = {}
        self._tables: dict[int, int] = {}
        self._flying: dict[tuple[int, int], deque[Future[Pushed]]] = {}
        self._lock = threading.Lock()

    def attach(self, group: int, declarations: Sequence[Declaration]) -> None:
        """Declare the tables of a group, in the order of which lookups and pushes number them, to all servers."""
        terms = {"trainers": self.trainers, "staleness": self.staleness}
        wires = {"wire": self.wire, "gradient_wire": self.gradient_wire}
        who = {"session": self.session, "group": group, "trainer": self.trainer}
        fields = {**who, **terms, **wires, "tables": [each.to_json() for each in declarations]}
        self.servers.ask_all(Kind.ATTACH, fields)
        self._tables[group], self._attached[group] = len(declarations), Message(Kind.ATTACH, fields)
        for link in self.servers.links:
            link.again(list(self._attached.values()))

    def lookup(
        self,
        server: int,
        group: int,
        step: int,
        tables: Sequence[int] | np.ndarray,
        counts: Sequence[int] | np.ndarray,
        ids: np.ndarray,
        *,
        train: bool,
        part: int = 0,
    ) -> Future[np.ndarray]:
        """Vectors float32, flat, of `counts[i]` ids of table `tables[i]` one after another, zeros where there is none.

        Tables ascend. A training lookup is answered when the pushes that it must have seen are applied; several of one
        step are parts 0, 1, …. `ids` must not change before the answer is there: they may be sent again.
        """
        fields = {**self._fields(group, step), "part": part, "train": train}
        what = f"the lookup of step {step}"
        asked = self.servers.ask(server, Kind.LOOKUP, fields, [_pairs(tables, counts), ids], what=what)
        return then(asked, lambda answer: received(answer.array(0, WIRE[self.wire], -1), self.wire))

    def push(
        self,
        server: int,
        group: int,
        step: int,
        tables: Sequence[int] | np.ndarray,
        counts: Sequence[int] | np.ndarray,
        ids: np.ndarray,
        vectors: np.ndarray,
        numbers: np.ndarray,
    ) -> Future[Pushed]:
        """One update with the gradients float32, flat, of distinct ids; what came of it is there when it is applied.

        Every trainer pushes every step once to every server, also without ids. `numbers` are float64 [tables, 13]: the
        twelve of `hybridrec.optim.rule.RowStep` that native code takes, then its step. Waits where more than
        staleness + 1 pushes would be on their way, and raises if one of those before has failed.
        """
        flying = self._flying.setdefault((server, group), deque())
        while len(flying) > self.staleness or (flying and flying[0].done()):
            flying.popleft().result()
        buffers = [_pairs(tables, counts), ids, on_wire(vectors, self.gradient_wire), numbers]
        what = f"the push of step {step}"
        asked = self.servers.ask(server, Kind.PUSH, self._fields(group, step), buffers, what=what)
        future = then(asked, lambda answer: _pushed(answer, self._tables[group]))
        flying.append(future)
        return future

    def drain(self) -> None:
        """Wait until every push is applied; raises if one has failed."""
        for flying in self._flying.values():
            while flying:
                flying.popleft().result()

    def change(
        self,
        server: int,
        kind: Kind,
        table: str,
        fields: Mapping[str, Any] | None = None,
        buffers: Sequence[np.ndarray] = (),
        *,
        together: bool = False,
    ) -> Future[Message]:
        """A request that changes a table, done once however often it is sent.

        `together`: all trainers make the same sequence of such calls, and each is done for the first of them.
        """
        by = -1 if together else self.trainer
        with self._lock:
            once = next(self._once[by])
        given = {"session": self.session, "by": by, "once": once, "table": table, **(fields or {})}
        return self.servers.ask(server, kind, given, buffers, what=f"{kind.name.lower()} of table {table!r}")

    def _fields(self, group: int, step: int) -> dict[str, int]:
        return {"session": self.session, "group": group, "trainer": self.trainer, "step": step}


def _pairs(tables: Sequence[int] | np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(tables, np.int64), np.asarray(counts, np.int64)], axis=1)


def _pushed(answer: Message, tables: int) -> Pushed:
    if answer.fields["again"]:
        return Pushed(True, *np.zeros((3, tables), np.int64))
    return Pushed(False, *answer.array(0, "<i8", tables, 3).T)
