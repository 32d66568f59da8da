"""Clocks: what is known to be done before what, for streams of a card and threads of its host.

Each has a clock of its own that counts what it was given, and knows how far those of others had come (a vector clock):
work is ordered behind all that its vector has.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.int64]
MOST = 256  # streams and threads of a test


class Clocks:
    """The vectors of all streams and threads, by their numbers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._threads: list[int] = []
        self._vectors = np.zeros((MOST, MOST), dtype=np.int64)

    def add(self, name: str, thread: bool = False) -> int:
        """A stream, or a thread, that nobody has waited for yet."""
        assert len(self.names) < MOST, "a test makes fewer streams"
        self.names.append(name)
        if thread:
            self._threads.append(len(self.names) - 1)
        return len(self.names) - 1

    def of(self, who: int) -> Vector:
        return self._vectors[who]

    def seen(self, who: int) -> Vector:
        """The vector as it is now."""
        return self._vectors[who].copy()

    def tick(self, who: int) -> int:
        """The time of what `who` does next."""
        self._vectors[who, who] += 1
        return int(self._vectors[who, who])

    def follow(self, who: int, moment: Vector) -> None:
        """What `who` does from now on comes after a moment."""
        np.maximum(self._vectors[who], moment, out=self._vectors[who])

    def of_threads(self) -> Vector:
        """What all threads of the host know together: each has dropped its references before the last one goes."""
        return self.together(self._threads)

    def together(self, several: Iterable[int]) -> Vector:
        """What is over when all that these were given is."""
        return self._vectors[list(several)].max(0, initial=0)

    def everything(self) -> Vector:
        """The moment when all that was given to anybody is done."""
        return self._vectors.max(0)
