"""PushDraft: what row optimizers have given for the push of a step, as a message to each server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybridrec.embedding.queue import QueuedCall
from hybridrec.optim.rule import RowStep
from hybridrec.server.course import Asked, Gradients
from hybridrec.server.declared import step_numbers
from hybridrec.server.row_group import NUMBERS
from hybridrec.server.summed_norm import Part, added_up

if TYPE_CHECKING:
    from hybridrec.server.served_lookup import ServedGradients


class PushDraft:
    """The gradients of a step, table by table; or, as most steps are, of one backward call with all its tables.

    That one is laid out as its lookup was, which is how servers want it: nothing of it is copied or looked at by table.
    """

    def __init__(self, numbers: Mapping[str, int], counting: set[str], servers: int) -> None:
        """`numbers` are those that servers know tables by; ids of `counting` tables may be there more than once."""
        self._number_of, self._counting, self._servers = numbers, counting, servers
        self._whole: ServedGradients | None = None
        self._parts: dict[str, list[list[Part]]] = {}  # by server
        self._steps: dict[str, RowStep] = {}

    @property
    def tables(self) -> list[str]:
        """Those that have been given, in the order of their numbers."""
        return sorted(self._steps, key=self._number_of.__getitem__)

    def add(self, calls: Sequence[QueuedCall], steps: Mapping[str, RowStep]) -> None:
        """The gradients of these tables; each may be given once."""
        assert self._steps.keys().isdisjoint(steps), "a table has one step in a push"
        whole = calls[0].work if len(calls) == 1 and not (self._steps or calls[0].work.marked) else None
        self._split()
        if whole is not None and whole.tables == calls[0].left == steps.keys() and self._counting.isdisjoint(steps):
            self._whole = whole
        else:
            self._parts |= {name: self.summed(name, [call for call in calls if name in call.left]) for name in steps}
        self._steps |= steps

    def _split(self) -> None:
        """Tables of a whole call become parts, since others join them."""
        if self._whole is not None:
            self._parts = {name: self._of_each([self._whole], name) for name in self._steps}
            self._whole = None

    def summed(self, name: str, calls: Sequence[QueuedCall]) -> list[list[Part]]:
        """For each server the ids of a table, each once, with the sums of their gradients."""
        works: list[ServedGradients] = [call.work for call in calls if name in call.work.tables]
        found = self._of_each(works, name)
        if len(works) < 2 and name not in self._counting:
            return found
        return [[added_up(parts)] if parts else [] for parts in found]

    def _of_each(self, works: Sequence[ServedGradients], name: str) -> list[list[Part]]:
        servers = range(self._servers)
        return [[part for work in works if len((part := work.of(name, server))[0])] for server in servers]

    def take(self) -> list[Gradients]:
        """The message to each server; the next draft begins."""
        tables = self.tables
        lines = {id(step): step_numbers(step) for step in self._steps.values()}  # many tables share one
        numbers = np.array([lines[id(self._steps[name])] for name in tables], np.float64).reshape(-1, NUMBERS)
        made = [Gradients(*self._of_server(tables, server), numbers) for server in range(self._servers)]
        self._whole, self._parts, self._steps = None, {}, {}
        return made

    def _of_server(self, tables: Sequence[str], server: int) -> tuple[Asked, np.ndarray]:
        if self._whole is not None:
            return self._whole.for_server(server)
        parts = [self._parts[name][server] for name in tables]
        flat = [part for each in parts for part in each]
        numbers = np.array([self._number_of[name] for name in tables], np.int64)
        counts = np.array([sum(len(ids) for ids, _ in each) for each in parts], np.int64)
        ids = np.concatenate([ids for ids, _ in flat]) if flat else np.empty(0, np.int64)
        vectors = np.concatenate([each.ravel() for _, each in flat]) if flat else np.empty(0, np.float32)
        return Asked(numbers, counts, ids), vectors
