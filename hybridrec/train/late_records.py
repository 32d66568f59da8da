"""LateRecords: those of steps that a GPU may still be computing. A thread waits for their figures, and steps go on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hybridrec.train.history import Record
from hybridrec.train.late_loss import AHEAD

log = logging.getLogger("hybridrec.train")

LATE = 2 * AHEAD - 1  # steps after which a record is written: its figures are there by then, and nobody waits for them


class LateRecords:
    """Records in the order of their steps; each is handed to `keep`, with its figures, by whoever calls `write`."""

    def __init__(self, keep: Callable[[Record, Mapping[str, Any]], None]) -> None:
        self._keep = keep
        self._waiting: deque[tuple[Record, Future[Mapping[str, Any]]]] = deque()
        self._reader = ThreadPoolExecutor(1, "hybridrec-records")

    def add(self, record: Record, figures: Callable[[], Mapping[str, Any]]) -> None:
        """The record of the step that has just been launched; the thread asks for its figures."""
        self._waiting.append((record, self._reader.submit(figures)))

    def write(self, until: int | None = None) -> None:
        """Write those of steps until this one, or all; waits for what a GPU still computes."""
        while self._waiting and (until is None or self._waiting[0][0]["step"] <= until):
            record, figures = self._waiting.popleft()
            self._keep(record, figures.result())

    def forget(self, step: int) -> None:
        """Leave out those of this step and later ones."""
        while self._waiting and self._waiting[-1][0]["step"] >= step:
            self._waiting.pop()

    def close(self) -> None:
        """Write all that an error has left, and end the thread; what goes wrong must not take the error's place."""
        try:
            self.write()
        except Exception:
            log.exception("the last records were not all written")
        self._reader.shutdown()
