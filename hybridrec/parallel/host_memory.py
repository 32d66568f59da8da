"""HostMemory: what ranks on one host send each other goes through memory that they share, and not through Gloo.

A message costs two copies: out of it by its sender, into `received` by its receiver. Nobody waits to send, and there
are no threads. What a rank has sent can be taken in any order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from torch import Tensor

from hybridrec import _native
from hybridrec.parallel.process import host_name
from hybridrec.parallel.ranks import Ranks, names_of

CHANNELS = ("ids", "vectors", "layers")


class Breach:
    """What first went wrong between ranks. All that comes after it fails with it: a message that was waited for in vain
    leaves ranks at different places, and what the next ones would say of that is not the cause."""

    def __init__(self) -> None:
        self._first: RuntimeError | None = None

    def refuse(self) -> None:
        """Raise if something has gone wrong."""
        if self._first is not None:
            raise RuntimeError(str(self._first)) from self._first

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within it, an error is the first one, or comes after it."""
        self.refuse()
        try:
            yield
        except RuntimeError as error:
            self._first = self._first or error
            self.refuse()


class Coming:
    """A message of all ranks; `wait` copies it to where it is wanted."""

    def __init__(self, memory: Any, channel: int, number: int, received: Tensor, of: list[int], breach: Breach) -> None:
        self._breach = breach
        self._take: Callable[[], None] | None = partial(_take, memory, channel, number, received, of)
        self._ready = partial(memory.ready, channel, number)
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Until it is here."""
        with self._lock:
            self._take_once()

    def take_if_here(self) -> bool:
        """Take it where nobody has to wait for it; whether it has been taken."""
        if self._lock.acquire(blocking=False):
            try:
                if self._take is not None and self._ready():
                    self._take_once()
            finally:
                self._lock.release()
        return self._take is None

    def _take_once(self) -> None:
        if self._take is not None:
            with self._breach.noted():
                self._take()
            self._take = None


def _take(memory: Any, channel: int, number: int, received: Tensor, of: list[int]) -> None:
    memory.take(channel, number, received.data_ptr(), of)


class HostMemory:
    """Messages of several channels; each may be used by a thread of its own."""

    def __init__(self, memory: Any, rank: int) -> None:
        self._memory, self._rank, self._breach = memory, rank, Breach()
        self._open: dict[str, deque[Coming]] = {channel: deque() for channel in CHANNELS}

    def send(
        self, channel: str, message: Tensor, to: Sequence[int], received: Tensor, of: Sequence[int], to_itself: bool
    ) -> Coming:
        """Send `to` lines to each rank; `of` lines of each will come to `received`. If it sends to itself, this rank's
        own are there at once.

        What came before and nobody has asked for yet is taken now, so that its sender can use the memory again.
        """
        self._breach.refuse()
        self._take_what_is_here(channel)
        message, line = message.contiguous(), prod(message.shape[1:]) * message.element_size()  # bytes
        place = CHANNELS.index(channel)
        number = self._memory.post(place, message.data_ptr(), [lines * line for lines in to])
        if to_itself:
            here, there, own = sum(of[: self._rank]), sum(to[: self._rank]), to[self._rank]
            received[here : here + own] = message[there : there + own]
        coming = Coming(self._memory, place, number, received, [lines * line for lines in of], self._breach)
        self._open[channel].append(coming)
        return coming

    def _take_what_is_here(self, channel: str) -> None:
        waiting = self._open[channel]
        while waiting and waiting[0].take_if_here():
            waiting.popleft()


def host_memory(ranks: Ranks, shared: bool | None) -> HostMemory | None:
    """Memory that all ranks share; None where they are not on one host, or cannot have it, or where one wants none.

    Every rank asks, and all get the same answer. `shared` is True: it is an error not to get it.
    """
    mine, error = None, "not wanted"
    if shared is not False:
        try:
            mine = _native.HostExchange(ranks.rank, ranks.world, len(CHANNELS), ranks.timeout)
        except RuntimeError as failed:
            error = str(failed)
    told = ranks.all_told(None if mine is None else [host_name(), mine.process, mine.file, str(mine.token)])
    if mine is not None:
        error = _meet(mine, told)
    errors = ranks.all_told([error, shared is True])
    if not any(text for text, _ in errors):
        return HostMemory(mine, ranks.rank)
    if any(wanted for _, wanted in errors):
        without = [rank for rank, (text, _) in enumerate(errors) if text]
        raise RuntimeError(
            f"{names_of(without)} cannot share memory with the others: {errors[without[0]][0]}; leave `shared` out "
            "to go through Gloo then"
        )
    return None


def _meet(mine: Any, told: list[Any]) -> str:
    """Open the memory of all ranks; why that cannot be, or nothing."""
    if any(each is None for each in told):
        return "another rank has none"
    hosts, processes, files, tokens = zip(*told, strict=True)
    if len(set(hosts)) > 1:
        return "ranks are on several hosts"
    try:
        mine.meet(list(processes), list(files), [int(token) for token in tokens])
    except RuntimeError as failed:
        return str(failed)
    return ""
