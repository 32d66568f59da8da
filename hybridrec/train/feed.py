"""Feed: batches on their way to the GPU while it computes the steps before."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from hybridrec.embedding.gpu.streams import stream_apart
from hybridrec.train.placed import Placed
from hybridrec.train.seats import Seats
from hybridrec.types import Batch

AHEAD = 2  # batches that wait on the GPU for their step
ENDING = 5.0  # seconds that a program waits, as it ends, for a thread that may be inside a user's iterator


class Feed(Iterator[Placed]):
    """The batches of an iterable, placed one after the other by a thread: read, checked, copied in one piece.

    `place` makes a `Placed` of a batch. `position()`, if given, says where the source stands; `state` is what it said
    after the batch that was last taken from here, however far the thread has read ahead. An error of the source comes
    where its batch would have come. Batches that are not in page-locked memory are copied there first. `all_read` says
    that the source has ended: what is left waits here. Feeds that share `seats` have as many batches on the device
    together as one of them would have alone.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        place: Callable[[Batch], Placed],
        device: torch.device,
        position: Callable[[], Any] | None = None,
        seats: Seats | None = None,
    ) -> None:
        self._source = iter(batches)
        self._place, self._position = place, position
        self._stream = stream_apart(device) if device.type == "cuda" else None
        self.state = None if position is None else position()
        self.all_read = False
        self._copied: deque[tuple[Any, Batch]] = deque()  # batches that the device may still be reading
        self._ready: queue.SimpleQueue[tuple[Placed | BaseException | None, Any]] = queue.SimpleQueue()
        self._seats = seats or seats_ahead()
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
        self._seats.free()
        if found.ready is not None:
            here = torch.cuda.current_stream(found.batch.device)
            here.wait_event(found.ready)
            found.batch.record_stream(here)
        return found

    def close(self, within: float | None = None) -> None:
        """Read no further; waits for the thread, at most so many seconds."""
        self._closed.set()
        self._seats.wake()
        self._thread.join(within)
        while not self._ready.empty():
            if isinstance(self._ready.get()[0], Placed):
                self._seats.free()

    def _run(self) -> None:
        try:
            while self._seats.take(self._closed):
                if not self._bring():
                    break
        finally:
            getattr(self._source, "close", lambda: None)()
            if self._stream is not None:
                self._stream.synchronize()  # then nobody reads the memory of its batches
            self._copied.clear()

    def _bring(self) -> bool:
        """Put one more batch into the seat that was taken for it; else that is free again."""
        try:
            batch = next(self._source, None)
            if batch is not None:
                placed, state = self._placed(batch), None if self._position is None else self._position()
                self._ready.put((placed, state))
                return True
            self.all_read = True
            self._ready.put((None, None))
        except BaseException as error:
            self._ready.put((error, None))
        self._seats.free()
        return False

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


def seats_ahead() -> Seats:
    """For the batches that wait, and for one on its way."""
    return Seats(AHEAD + 1)


_live: weakref.WeakSet[Feed] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends while a thread is inside torch would be aborted: Python ends threads as they come back."""
    for feed in list(_live):
        feed.close(ENDING)
