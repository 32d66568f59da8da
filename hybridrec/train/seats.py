"""Seats: how many batches may be on a device for steps to come, whichever feed brings them."""

from __future__ import annotations

import threading


class Seats:
    """So many batches have room; a feed waits for a seat before it reads one, and whoever takes the batch frees it.

    >>> seats, leaving = Seats(2), threading.Event()
    >>> seats.take(leaving), seats.take(leaving)
    (True, True)
    >>> seats.free()
    >>> seats.take(leaving)
    True
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._changed = threading.Condition()

    def take(self, leaving: threading.Event) -> bool:
        """Wait for a seat; False if the feed is `leaving` instead, after which it calls `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or leaving.is_set())
            if leaving.is_set():
                return False
            self._left -= 1
            return True

    def free(self) -> None:
        """A seat is empty again."""
        with self._changed:
            self._left += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Have those that wait look again whether they are to leave."""
        with self._changed:
            self._changed.notify_all()
