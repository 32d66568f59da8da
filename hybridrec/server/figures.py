"""Figures: what a server has done since it started."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hybridrec.server.protocol import Kind, Message


@dataclass
class Figures:
    """Counts since the start; rates are the reader's to make."""

    lookups: int = 0
    pushes: int = 0
    ids_looked_up: int = 0
    ids_pushed: int = 0
    refused: int = 0
    seconds: float = 0.0  # at work
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def timed(self, request: Message) -> Iterator[None]:
        """Count a request and the time that it takes."""
        start = time.perf_counter()
        ids = request.buffers[1].nbytes // 8 if len(request.buffers) > 1 else 0
        if request.kind in (Kind.LOOKUP, Kind.FIND):
            self.lookups, self.ids_looked_up = self.lookups + 1, self.ids_looked_up + ids
        elif request.kind == Kind.PUSH:
            self.pushes, self.ids_pushed = self.pushes + 1, self.ids_pushed + ids
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("lookups", "pushes", "ids_looked_up", "ids_pushed", "refused")}
        return {**counts, "seconds": self.seconds, "uptime": time.monotonic() - self.started, "memory": resident()}


def resident() -> int:
    """Bytes of memory that this process has in RAM."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
