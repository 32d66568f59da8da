"""When what has died may be started again: rules alone, no processes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW = 60.0  # seconds


@dataclass
class ServerRestarts:
    """So many restarts of a server within a minute.

    >>> restarts = ServerRestarts(most=2)
    >>> [restarts.allows(now) for now in (0, 1, 2, 61)]
    [True, True, False, True]
    """

    most: int
    _times: deque[float] = field(default_factory=deque)

    def allows(self, now: float) -> bool:
        """Whether it may start again now; then that counts."""
        while self._times and self._times[0] <= now - WINDOW:
            self._times.popleft()
        if len(self._times) >= self.most:
            return False
        self._times.append(now)
        return True


@dataclass
class TrainerRestarts:
    """So many restarts of the trainers without a new checkpoint between them.

    An error of theirs before there is another checkpoint than the `first`, with which the run began, is no accident,
    unless a server has died meanwhile: the same would come again.

    >>> restarts = TrainerRestarts(most=1)
    >>> restarts.allows(code=1, checkpoint=None, server_died=False)
    False
    >>> [restarts.allows(-9, saved, False) for saved in ("step-1", "step-1", "step-2")]
    [True, False, True]
    """

    most: int
    first: str | None = None
    _last: str | None = None
    _without: int = 0

    def allows(self, code: int, checkpoint: str | None, server_died: bool) -> bool:
        """Whether trainers that ended with this code may start again; then that counts."""
        if code > 0 and checkpoint == self.first and not server_died:
            return False
        if checkpoint != self._last:
            self._last, self._without = checkpoint, 0
        self._without += 1
        return self._without <= self.most
