"""Servers of this process, without a network; and links that delay what they are asked."""

from __future__ import annotations

import queue
import random
import threading
import time
from concurrent.futures import Future

from hybridrec.embedding import Store, Table
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE
from hybridrec.server.client import Servers, Session
from hybridrec.server.declared import declaration_of
from hybridrec.server.link import Link
from hybridrec.server.protocol import Message
from hybridrec.server.remote_store import RemoteStore
from hybridrec.server.shard import Shard


def shards(count: int) -> list[Shard]:
    """Servers 0, 1, … without rows."""
    return [Shard(number, count) for number in range(count)]


def direct(count: int) -> Servers:
    """The way to so many new servers."""
    return Servers.direct(shards(count))


def store_on(count: int, kind: type[RemoteStore] = RemoteStore) -> type[RemoteStore]:
    """A store whose rows are on so many servers of its own; copies have others."""

    class DirectStore(kind):
        def __init__(self, table: Table, seed: int = 0, share: Share = WHOLE) -> None:
            session = Session(direct(count), 1)
            session.attach(0, [declaration_of(table, seed)])
            super().__init__(table, seed, session)

        __deepcopy__ = Store.__deepcopy__

    return DirectStore


class Delayed(Link):
    """Brings requests to a link after a random time, in the order in which they were sent."""

    def __init__(self, link: Link, most: float, seed: int) -> None:
        self.number, self.address, self._link = link.number, link.address, link
        self._most, self._random = most, random.Random(seed)
        self._waiting: queue.Queue[tuple[float, Message, Future[Message]] | None] = queue.Queue()
        threading.Thread(target=self._bring, daemon=True).start()

    def ask(self, request: Message, deadline: float, what: str) -> Future[Message]:
        made: Future[Message] = Future()
        self._waiting.put((time.monotonic() + self._random.random() * self._most, request, made))
        return made

    def again(self, requests: list[Message]) -> None:
        self._link.again(requests)

    def close(self) -> None:
        self._waiting.put(None)
        self._link.close()

    def _bring(self) -> None:
        while (found := self._waiting.get()) is not None:
            due, request, made = found
            time.sleep(max(0.0, due - time.monotonic()))
            answer = self._link.ask(request, 30.0, "what was delayed")
            answer.add_done_callback(lambda done, made=made: _pass_on(done, made))


def _pass_on(done: Future[Message], to: Future[Message]) -> None:
    error = done.exception()
    to.set_result(done.result()) if error is None else to.set_exception(error)


def delayed(servers: Servers, most: float, seed: int = 0) -> Servers:
    """The same servers, up to so many seconds away."""
    return Servers([Delayed(link, most, seed + link.number) for link in servers.links])
