"""Course: how far this trainer has come with a group of tables on servers: the numbers of its lookups and pushes.

A step is one or more training lookups and one push. With staleness s, servers answer a lookup of step t when all pushes
up to step t - 1 - s are applied; so lookups may be sent up to s steps ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from hybridrec.server.client import Pushed, Session


class Asked(NamedTuple):
    """What one server is asked for: ids of these tables, so many of each, one table after another."""

    tables: np.ndarray  # int64 [n], ascending
    counts: np.ndarray  # int64 [n]
    ids: np.ndarray  # int64 [sum of counts]


class Gradients(NamedTuple):
    """Gradients for one server: float32, flat, of the ids asked for; and 13 numbers of each table's step."""

    asked: Asked
    vectors: np.ndarray
    numbers: np.ndarray


class Sent(NamedTuple):
    """A lookup that is on its way: its step, and the vectors of each server."""

    step: int
    train: bool
    answers: Sequence[Future[np.ndarray]]

    def vectors(self) -> list[np.ndarray]:
        """What all servers have answered; raises what went wrong with any."""
        return [answer.result() for answer in self.answers]


class Course:
    """Numbers the lookups and pushes of group `group`."""

    def __init__(self, session: Session, group: int) -> None:
        self.session, self.group = session, group
        self.step = 0  # the one whose push comes next
        self._last = (-1, 0)  # the last training lookup that was sent: its step, and how manieth of that step
        self._lock = threading.RLock()

    @property
    def servers(self) -> int:
        return self.session.servers.count

    @property
    def staleness(self) -> int:
        return self.session.staleness

    def look(self, asked: Sequence[Asked], train: bool, step: int | None = None) -> Sent:
        """Send a lookup; one for training may be of a later step than the present one, at most `staleness` later."""
        if not train:
            self.session.drain()  # it reads what this trainer has written
            return Sent(self.step, False, [self._ask(n, (self.step, 0), False, each) for n, each in enumerate(asked)])
        with self._lock:
            wanted = max(self.step if step is None else step, self._last[0])
            assert wanted <= self.step + self.staleness, "it would wait for pushes that nobody has sent"
            self._last = (wanted, self._last[1] + 1) if wanted == self._last[0] else (wanted, 0)
            return Sent(wanted, True, [self._ask(n, self._last, True, each) for n, each in enumerate(asked)])

    def _ask(self, server: int, number: tuple[int, int], train: bool, asked: Asked) -> Future[np.ndarray]:
        step, part = number
        return self.session.lookup(server, self.group, step, *asked, train=train, part=part)

    def push(self, gradients: Sequence[Gradients]) -> list[Future[Pushed]]:
        """Send the push of this step to all servers; the next step begins."""
        with self._lock:
            sent = [self._push(server, *each) for server, each in enumerate(gradients)]
            self.step += 1
        return sent

    def _push(self, server: int, asked: Asked, vectors: np.ndarray, numbers: np.ndarray) -> Future[Pushed]:
        return self.session.push(server, self.group, self.step, *asked, vectors, numbers)
