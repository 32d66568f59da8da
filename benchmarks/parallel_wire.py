"""What ranks say to each other while a model steps, seen from outside: calls of torch.distributed, and when they end.

A `Watch` stands in for the functions of torch.distributed. It counts calls by name, and adds latency to all-to-alls:
a thread waits for the message, then for the latency, and only then lets the receiver go on. So the moment of arrival is
known, whether or not somebody waits for it. The reduction of dense gradients is torch DDP's own and is not delayed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import distributed

EXCHANGES = ("all_to_all_single", "all_to_all")
NAMES = (*EXCHANGES, "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor")
NAMES = (*NAMES, "broadcast", "gather", "scatter", "reduce", "isend", "irecv", "send", "recv", "batch_isend_irecv")


class Late:
    """A message that arrives some time after it did."""

    def __init__(self, work: Any, latency: float) -> None:
        self._work, self._latency, self._here = work, latency, threading.Event()
        self.began, self.ended, self.blocked = time.perf_counter(), 0.0, 0.0
        threading.Thread(target=self._arrive, daemon=True).start()

    def _arrive(self) -> None:
        self._work.wait()
        if self._latency:
            time.sleep(self._latency)
        self.ended = time.perf_counter()
        self._here.set()

    def wait(self, timeout: Any = None) -> bool:
        start = time.perf_counter()
        self._here.wait()
        self.blocked += time.perf_counter() - start
        return True

    def is_completed(self) -> bool:
        return self._here.is_set()

    @property
    def taken(self) -> float:
        """Seconds from start to arrival."""
        self._here.wait()
        return self.ended - self.began


class Watch:
    """Counts of calls by name, and the messages that were delayed."""

    def __init__(self, latency: float | None = None) -> None:
        self.latency = latency  # seconds; None leaves messages alone
        self.calls: Counter[str] = Counter()
        self.late: list[Late] = []

    def clear(self) -> None:
        self.calls, self.late = Counter(), []

    def hidden(self) -> float:
        """The share of the messages' time in which nobody waited for them."""
        return hidden_share([(each.taken, each.blocked) for each in self.late])

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a count, and with latency where it is an exchange."""

        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if self.latency is None or name not in EXCHANGES:
                return call(*args, **options)
            late = Late(call(*args, **{**options, "async_op": True}), self.latency)
            self.late.append(late)
            return late if options.get("async_op") else late.wait() and None

        return counted


def hidden_share(messages: list[tuple[float, float]]) -> float:
    """One less the share of waiting, of (seconds taken, seconds waited) of messages; 0 where there are none.

    >>> hidden_share([(0.004, 0.001), (0.006, 0.0)])
    0.9
    """
    taken = sum(seconds for seconds, _ in messages)
    return 1 - sum(min(waited, seconds) for seconds, waited in messages) / taken if taken else 0.0


@contextmanager
def watched(latency: float | None = None) -> Iterator[Watch]:
    """Watch torch.distributed while inside."""
    watch, kept = Watch(latency), {name: getattr(distributed, name) for name in NAMES}
    try:
        for name, call in kept.items():
            setattr(distributed, name, watch.around(name, call))
        yield watch
    finally:
        for name, call in kept.items():
            setattr(distributed, name, call)
