"""A trainer that counts: every push adds whole numbers to rows, so that one lost or doubled push is seen exactly.

It saves what it has counted every few steps, and goes on from there when it was killed. It needs no torch, so that it
starts at once: python -m tests.server.chaos_trainer JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridrec.server.client import Servers, Session
from hybridrec.server.placement import owners
from hybridrec.server.protocol import Kind
from hybridrec.server.row_messages import packed
from hybridrec.server.rows import RowArrays
from tests.patience import PATIENCE
from tests.server.counting import NUMBERS, RULE, counter

OLD, NEW = 500, 50_000  # ids that come again and again, and those that come once in a while
IDS, EACH = OLD + NEW, 12  # ids in all, and those of each kind in one push
WAIT = 0.002  # seconds between looks at a file


@dataclass(frozen=True)
class Task:
    """What one trainer does; `start` counts how often all were started."""

    folder: str
    rank: int
    world: int
    start: int
    addresses: list[str]
    staleness: int = 0
    save_every: int = 25
    pause: float = 0.0  # seconds of each step
    deadline: float = PATIENCE

    @staticmethod
    def of(text: str) -> Task:
        return Task(**json.loads(text))


def pushed(trainer: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a push, and what it adds to their rows: 1, and a number that tells pushes apart."""
    old = np.random.default_rng([trainer, step]).choice(OLD, EACH, replace=False)
    new = OLD + (np.arange(EACH) + EACH * (4 * step + trainer)) % NEW
    return np.concatenate([old, new]).astype(np.int64), np.array([1.0, 1 + (7 * step + 3 * trainer) % 101], np.float32)


def expected(world: int, steps: int, first: int = 0) -> np.ndarray:
    """What all pushes of these steps have added to the rows of ids 0, 1, …: float32 [IDS, 2]."""
    rows = np.zeros((IDS, 2), np.float32)
    for step in range(first, steps):
        for trainer in range(world):
            ids, more = pushed(trainer, step)
            rows[ids] += more
    return rows


def checkpoint(folder: Path) -> tuple[int, np.ndarray]:
    """The step and the rows of the last checkpoint; of none, the beginning."""
    if not (folder / "saved.npz").exists():
        return 0, np.zeros((IDS, 2), np.float32)
    with np.load(folder / "saved.npz") as found:
        return int(found["step"]), found["rows"]


class Counting:
    """One start of a trainer."""

    def __init__(self, task: Task) -> None:
        self.task, self.folder = task, Path(task.folder)
        self.servers = Servers.connect(task.addresses, deadline=task.deadline, name=f"trainer {task.rank}")
        self.first, self.rows = checkpoint(self.folder)
        self.session = self._joined()

    # -- the beginning ------------------------------------------------------------------------------------

    def _joined(self) -> Session:
        """A new session, in which servers hold the rows of the checkpoint."""
        task = self.task
        if task.rank == 0:
            before = max(answer.fields["session"] for answer in self.servers.ask_all(Kind.HELLO))
            self._tell("session", str(before + 1))
        number = int(self._told("session"))
        session = Session(self.servers, number, task.rank, task.world, staleness=task.staleness)
        session.attach(0, [counter(capacity=100_000)])
        for server in range(self.servers.count):
            session.change(server, Kind.RULE, "count", {"rule": RULE}, together=True).result()
            session.change(server, Kind.CLEAR, "count", together=True).result()
        self._meet("cleared")
        if task.rank == 0:
            ids = np.flatnonzero(self.rows.any(axis=1))
            for server, mine in self._dealt(ids):
                fields, buffers = packed(RowArrays(ids[mine], self.rows[ids[mine]], {}))
                session.change(server, Kind.LOAD, "count", fields, buffers).result()
        self._meet("loaded")
        return session

    def _dealt(self, ids: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The places of the ids that each server has."""
        owner = owners(ids, self.servers.count)
        for server in range(self.servers.count):
            yield server, np.flatnonzero(owner == server)

    # -- steps --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Count until it is enough."""
        ahead: deque[tuple[np.ndarray, list[tuple[np.ndarray, Future[np.ndarray]]]]] = deque()
        asked = step = self.first
        with open(self.folder / f"times-{self.task.rank}", "a", buffering=1) as times:
            while True:
                while asked <= step + self.task.staleness:
                    ahead.append(self._look(asked))
                    asked += 1
                self._check(step, *ahead.popleft())
                time.sleep(self.task.pause)
                self._push(step)
                for trainer in range(self.task.world):
                    ids, more = pushed(trainer, step)
                    self.rows[ids] += more
                step += 1
                times.write(f"{time.time()} {step}\n")
                if step % self.task.save_every == 0 and self._save(step):
                    return

    def _look(self, step: int) -> tuple[np.ndarray, list[tuple[np.ndarray, Future[np.ndarray]]]]:
        ids, found = pushed(self.task.rank, step)[0], []
        for server, mine in self._dealt(ids):
            at = step - self.first
            asked = self.session.lookup(server, 0, at, [0], [len(mine)], ids[mine], train=True)
            found.append((mine, asked))
        return ids, found

    def _check(self, step: int, ids: np.ndarray, found: list[tuple[np.ndarray, Future[np.ndarray]]]) -> None:
        """What a lookup found is what was counted, or, with staleness, at least what it must have seen."""
        rows = np.empty((len(ids), 2), np.float32)
        for mine, answer in found:
            rows[mine] = answer.result().reshape(-1, 2)
        behind = expected(self.task.world, step, max(self.first, step - self.task.staleness))
        least = (self.rows - behind)[ids]
        if (rows < least).any() or (self.task.staleness == 0 and (rows != least).any()):
            self._wrong(f"step {step}: rows are {rows.tolist()}, at least {least.tolist()}")

    def _push(self, step: int) -> None:
        ids, more = pushed(self.task.rank, step)
        for server, mine in self._dealt(ids):
            vectors = np.tile(more, len(mine))
            self.session.push(server, 0, step - self.first, [0], [len(mine)], ids[mine], vectors, NUMBERS)

    # -- checkpoints --------------------------------------------------------------------------------------

    def _save(self, step: int) -> bool:
        """One cut over all servers; whether it was the last."""
        self.session.drain()
        self._meet(f"drained-{step}")
        if self.task.rank == 0:
            rows = self._read()
            if (rows != self.rows).any():
                at = np.flatnonzero((rows != self.rows).any(axis=1))
                self._wrong(f"checkpoint {step}: {len(at)} rows differ, id {at[0]}: {rows[at[0]]}, {self.rows[at[0]]}")
            with open(self.folder / "saved.part", "wb") as file:
                np.savez(file, step=step, rows=rows)
            (self.folder / "saved.part").rename(self.folder / "saved.npz")
            self._tell(f"saved-{step}", "end" if (self.folder / "enough").exists() else "on")
        return self._told(f"saved-{step}") == "end"

    def _read(self) -> np.ndarray:
        rows = np.zeros((IDS, 2), np.float32)
        for server in range(self.servers.count):
            ids = self.servers.ask(server, Kind.IDS, {"table": "count"}).result().array(0, "<i8", -1)
            found = self.servers.ask(server, Kind.ROWS, {"table": "count"}, [ids]).result()
            rows[ids] = found.array(1, "<f4", -1, 2)
        return rows

    # -- what trainers tell each other ----------------------------------------------------------------------

    def _tell(self, name: str, text: str) -> None:
        file = self.folder / f"{name}-of-start-{self.task.start}"
        file.with_suffix(".part").write_text(text)
        file.with_suffix(".part").rename(file)

    def _told(self, name: str) -> str:
        file = self.folder / f"{name}-of-start-{self.task.start}"
        while not file.exists():
            time.sleep(WAIT)
        return file.read_text()

    def _meet(self, name: str) -> None:
        self._tell(f"{name}-{self.task.rank}", "")
        for rank in range(self.task.world):
            self._told(f"{name}-{rank}")

    def _wrong(self, text: str) -> None:
        with open(self.folder / "wrong", "a") as file:
            file.write(f"start {self.task.start}, trainer {self.task.rank}, {text}\n")


if __name__ == "__main__":
    Counting(Task.of(sys.argv[1])).run()
