"""What ranks say to each other while a model steps, seen from outside: calls of torch.distributed, and when they end.

A `Watch` stands in for the functions of torch.distributed. It counts calls by name, and adds latency to all-to-alls:
a thread waits for the message, then for the latency, and only then lets the receiver go on. So the moment of arrival is
known, whether or not somebody waits for it. The reduction of dense gradients is torch DDP's own and is not delayed.
Models that are sharded while watched send everything through Gloo, since what goes through shared memory is not seen.
Blocked is the time in which the main thread waits: for a message, or for a thread that sends ids ahead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed

from hybridrec.parallel.ahead import Ahead
from hybridrec.parallel.ranks import Ranks, ranks

EXCHANGES = ("all_to_all_single", "all_to_all")
NAMES = (*EXCHANGES, "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor")
NAMES = (*NAMES, "broadcast", "gather", "scatter", "reduce", "isend", "irecv", "send", "recv", "batch_isend_irecv")


class Late:
    """A message that arrives some time after it did."""

    def __init__(self, work: Any, latency: float) -> None:
        self._work: Any = work
        self._latency, self._here = latency, threading.Event()
        self.began, self.ended = time.perf_counter(), 0.0
        threading.Thread(target=self._arrive, daemon=True).start()

    def _arrive(self) -> None:
        self._work.wait()
        self._work = None  # it holds what was sent
        if self._latency:
            time.sleep(self._latency)
        self.ended = time.perf_counter()
        self._here.set()

    def wait(self, timeout: Any = None) -> bool:
        return self._here.wait()

    def is_completed(self) -> bool:
        return self._here.is_set()

    @property
    def taken(self) -> float:
        """Seconds from start to arrival."""
        self._here.wait()
        return self.ended - self.began


class Watch:
    """Counts of calls by name, the messages that were delayed, and seconds in which the main thread was blocked."""

    def __init__(self, latency: float | None = None) -> None:
        self.latency = latency  # seconds; None leaves messages alone
        self.calls: Counter[str] = Counter()
        self.late: list[Late] = []
        self.blocked = 0.0
        self._inside = False

    def clear(self) -> None:
        self.calls, self.late, self.blocked = Counter(), [], 0.0

    def taken(self) -> float:
        """Seconds from start to arrival, over all messages."""
        return sum(each.taken for each in self.late)

    def waiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that waits, with its time in the main thread counted; one inside another counts once."""

        def counted(*args: Any, **options: Any) -> Any:
            if self._inside or threading.current_thread() is not threading.main_thread():
                return call(*args, **options)
            self._inside, start = True, time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.blocked += time.perf_counter() - start
                self._inside = False

        return counted

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a count, and with latency where it is an exchange."""

        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if self.latency is None or name not in EXCHANGES:
                return call(*args, **options)
            late = Late(call(*args, **{**options, "async_op": True}), self.latency)
            late.wait = self.waiting(late.wait)
            self.late.append(late)
            return late if options.get("async_op") else late.wait() and None

        return counted


def hidden_share(taken: float, blocked: float) -> float:
    """The part of the seconds that messages took in which nobody waited; 0 where there are none.

    >>> hidden_share(0.010, 0.001), hidden_share(0.010, 0.020), hidden_share(0.0, 0.0)
    (0.9, 0.0, 0.0)
    """
    return 1 - min(blocked, taken) / taken if taken else 0.0


@contextmanager
def watched(latency: float | None = None) -> Iterator[Watch]:
    """Watch torch.distributed, and the way in which a lookup takes ids that went ahead, while inside."""
    watch, kept, waits = Watch(latency), {name: getattr(distributed, name) for name in NAMES}, (Ahead.taken, Ahead.now)
    world = ranks() or Ranks(0, 1)
    shared, world.shared = world.shared, False
    try:
        for name, call in kept.items():
            setattr(distributed, name, watch.around(name, call))
        Ahead.taken, Ahead.now = map(watch.waiting, waits)
        yield watch
    finally:
        world.shared = shared
        Ahead.taken, Ahead.now = waits
        for name, call in kept.items():
            setattr(distributed, name, call)
