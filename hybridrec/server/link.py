"""Link: a trainer's way to one server. Requests become futures; `direct` links call a shard of the same process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hybridrec.server.errors import raised
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.shard import Shard

T = TypeVar("T")


class Link(ABC):
    """The way to server `number`."""

    number: int
    address: str

    @abstractmethod
    def ask(self, request: Message, deadline: float, what: str) -> Future[Message]:
        """The answer to come, within `deadline` seconds or an error; `what` names the request for people."""

    @abstractmethod
    def again(self, requests: list[Message]) -> None:
        """What must be said first to a server that has started again with its rows."""

    @abstractmethod
    def close(self) -> None:
        """No more is asked."""


class DirectLink(Link):
    """Calls a shard, without a network."""

    def __init__(self, shard: Shard) -> None:
        self.number, self.address, self._shard = shard.number, "here", shard

    def ask(self, request: Message, deadline: float, what: str) -> Future[Message]:
        future: Future[Message] = Future()
        self._shard.handle(request, lambda answer: settle(future, self.number, answer), self)
        return future

    def again(self, requests: list[Message]) -> None:
        pass  # it lives as long as this process

    def close(self) -> None:
        self._shard.forget(self)


def settle(future: Future[Message], server: int, answer: Message) -> None:
    """Give a future its answer."""
    if future.done():
        return
    if answer.kind == Kind.ERROR:
        future.set_exception(raised(server, answer.fields))
    else:
        future.set_result(answer)


def then(future: Future[Message], make: Callable[[Message], T]) -> Future[T]:
    """What becomes of an answer, as a future."""
    made: Future[T] = Future()

    def finish(done: Future[Message]) -> None:
        if (error := done.exception()) is not None:
            made.set_exception(error)
            return
        try:
            made.set_result(make(done.result()))
        except Exception as fault:
            made.set_exception(fault)

    future.add_done_callback(finish)
    return made
