"""What changes while a dataset is iterated: its place, which epoch comes next, and what was lost."""

from __future__ import annotations

import logging
import mmap
import multiprocessing.context
import weakref
from typing import Any, NamedTuple

import torch

from hybridrec.data.decode import Decoder
from hybridrec.data.iteration import BatchIterator
from hybridrec.data.loader import Loader
from hybridrec.data.position import Position
from hybridrec.data.shuffle import Shuffle

WORKERS = 1024  # of a DataLoader, at most
log = logging.getLogger("hybridrec.data")


class Ahead(NamedTuple):
    """An epoch that is read before it is iterated; `device` is who copies its batches from page-locked memory."""

    position: Position
    device: torch.device | None
    batches: BatchIterator


class Cursor:
    """What changes while a dataset is iterated: its place, and what was lost."""

    def __init__(self) -> None:
        self.next: Position | None = None  # where the next iter() begins
        self.newest: Progress | None = None  # of the newest iterator, while it runs
        self.chunk_rows: int | None = None
        self.shuffle: Shuffle | None = None
        self.decoder: Decoder | None = None  # kept over epochs with the memory of its batches
        self.loader: weakref.ref[Loader] | None = None  # of the newest iterator
        self.ahead: Ahead | None = None
        self.lost: dict[str, int] = {}
        self._shared = _Shared()
        self._spawned = 0  # how often this was sent to a new process
        self._number = 0  # of that, for the copy that was sent

    def begin(self, position: Position) -> None:
        self.next, self.newest = position, None
        self._shared.begin(position.epoch)
        self._spawned = 0

    def take_ahead(self, position: Position, device: torch.device | None) -> BatchIterator | None:
        """The epoch that was read ahead, if it is this one; another is dropped."""
        if self.ahead is not None and (self.ahead.position, self.ahead.device) == (position, device):
            ahead, self.ahead = self.ahead, None
            return ahead.batches
        return self.drop_ahead()

    def drop_ahead(self) -> None:
        """Read nothing ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.batches.close()

    def epoch_of_worker(self, worker: int, workers: int) -> int:
        """The epoch that this DataLoader worker now begins.

        Forked and persistent workers count theirs in shared memory; spawned ones come one for each worker and epoch.
        """
        return self._shared.next_of(worker) + self._number // workers

    def ran_in_workers(self) -> bool:
        return self._spawned > 0 or self._shared.used()

    def __getstate__(self) -> dict[str, Any]:
        sent = multiprocessing.context.get_spawning_popen() is not None
        state = dict(self.__dict__, _shared=None, decoder=None, newest=None, loader=None, ahead=None, _spawned=0)
        state["_number"] = self._spawned if sent else 0
        self._spawned += sent
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared = _Shared()
        self._shared.begin(0 if self.next is None else self.next.epoch)


class _Shared:
    """The epoch to begin with and the epochs begun by each DataLoader worker since, seen by forked processes."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 + 4 * WORKERS)

    def begin(self, epoch: int) -> None:
        self._memory[:] = epoch.to_bytes(8, "little") + bytes(4 * WORKERS)

    def next_of(self, worker: int) -> int:
        at = slice(8 + 4 * (worker % WORKERS), 12 + 4 * (worker % WORKERS))
        begun = int.from_bytes(self._memory[at], "little")
        self._memory[at] = (begun + 1).to_bytes(4, "little")
        return int.from_bytes(self._memory[:8], "little") + begun

    def used(self) -> bool:
        return any(self._memory[8:])


class Progress:
    """How far one iterator has come; only the newest one of a dataset tells where the dataset stands."""

    def __init__(self, cursor: Cursor, position: Position) -> None:
        self.cursor, self.position = cursor, position

    def step(self) -> None:
        self.position = self.position.advance()

    def leave(self) -> None:
        """The iterator was closed before its end: nobody knows which epoch comes next."""
        if self.cursor.newest is self:
            self.cursor.drop_ahead()

    def end(self, lost: dict[str, int]) -> None:
        self.cursor.lost.update(lost)
        if self.cursor.newest is self:
            self.cursor.newest = None  # the dataset stands at the next epoch's start
        if lost:
            log.warning("left out %d rows of %d bad files: %s", sum(lost.values()), len(lost), lost)
