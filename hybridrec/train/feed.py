"""Feed: batches on their way to the GPU while it computes the steps before."""

from __future__ import annotations

import atexit
import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from hybridrec.embedding.gpu.streams import stream_apart
from hybridrec.train.placed import Placed
from hybridrec.types import Batch

AHEAD = 2  # batches that wait on the GPU for their step
ENDING = 5.0  # seconds that a program waits, as it ends, for a thread that may be inside a user's iterator


class Feed(Iterator[Placed]):
    """The batches of an iterable, placed one after the other by a thread: read, checked, copied in one piece.

    `place` makes a `Placed` of a batch. `position()`, if given, says where the source stands; `state` is what it said
    after the batch that was last taken from here, however far the thread has read ahead. An error of the source comes
    where its batch would have come. Batches that are not in page-locked memory are copied there first. `all_read` says
    that the source has ended: what is left waits here.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        place: Callable[[Batch], Placed],
        device: torch.device,
        position: Callable[[], Any] | None = None,
    ) -> None:
        self._source = iter(batches)
        self._place, self._position = place, position
        self._stream = stream_apart(device) if device.type == "cuda" else None
        self.state = None if position is None else position()
        self.all_read = False
        self._copied: deque[tuple[Any, Batch]] = deque()  # batches that the device may still be reading
        self._ready: queue.Queue[tuple[Placed | BaseException | None, Any]] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hybridrec-feed", daemon=True)
        _live.add(self)
        self._thread.start()

    def __next__(self) -> Placed:
        if self._closed.is_set():
            raise StopIteration
        found, state = self._ready.get()
        if not isinstance(found, Placed):
            self._closed.set()
            self._thread.join()  # it has nothing more to say
            if found is None:
                raise StopIteration
            raise found
        self.state = state
        if found.ready is not None:
            here = torch.cuda.current_stream(found.batch.device)
            here.wait_event(found.ready)
            found.batch.record_stream(here)
        return found

    def close(self, within: float = math.inf) -> None:
        """Read no further; waits for the thread, at most so many seconds."""
        self._closed.set()
        until = time.monotonic() + within
        while self._thread.is_alive() and time.monotonic() < until:
            with suppress(queue.Empty):
                self._ready.get(timeout=0.01)

    def _run(self) -> None:
        try:
            for batch in self._source:
                self._put(self._placed(batch), None if self._position is None else self._position())
                if self._closed.is_set():
                    return
            self.all_read = True
            self._put(None, None)
        except BaseException as error:
            self._put(error, None)
        finally:
            getattr(self._source, "close", lambda: None)()
            if self._stream is not None:
                self._stream.synchronize()  # then nobody reads the memory of its batches
            self._copied.clear()

    def _put(self, found: Placed | BaseException | None, state: Any) -> None:
        while not self._closed.is_set():
            try:
                return self._ready.put((found, state), timeout=0.1)
            except queue.Full:
                continue
        return None

    def _placed(self, batch: Batch) -> Placed:
        if self._stream is None:
            return self._place(batch)
        while self._copied and self._copied[0][0].query():
            self._copied.popleft()
        with torch.cuda.stream(self._stream):
            host = batch.pin_memory() if batch.device.type == "cpu" else batch
            placed = self._place(host)._replace(ready=self._stream.record_event())
        self._copied.append((placed.ready, host))
        return placed


_live: weakref.WeakSet[Feed] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends while a thread is inside torch would be aborted: Python ends threads as they come back."""
    for feed in list(_live):
        feed.close(ENDING)
