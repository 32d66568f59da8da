"""A process that works on a table on disk is killed, again and again, and every update is looked for."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedding.disk_work import LARGE, SMALL, Work, content, done, in_memory, on_disk

ROOT = Path(__file__).resolve().parents[2]


class Workers:
    """Processes to be killed, which come from one that has imported all there is."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.embedding.disk_work"]
        self.parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)

    def run_and_kill(self, folder: Path, capacity: int, draw: random.Random, back: bool = False) -> int:
        """Have a process do some steps, kill it a moment later, and tell the last step that it said it had done."""
        assert self.parent.stdin is not None
        print(folder, capacity, "back" if back else "on", file=self.parent.stdin, flush=True)
        process = int(self.line().removeprefix("process "))
        said = [int(self.line()) for _ in range(draw.randint(1, 12))]  # "dead" too early is no number
        time.sleep(draw.random() * 0.002)
        os.kill(process, signal.SIGKILL)
        while (line := self.line()) != "dead":
            said.append(int(line))
        return said[-1]

    def line(self) -> str:
        assert self.parent.stdout is not None
        return self.parent.stdout.readline().strip()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    with made.parent:
        yield made
        assert made.parent.stdin is not None
        made.parent.stdin.close()


class Oracle:
    """The same work in memory, and nobody kills it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.work = Work(in_memory(capacity), capacity)
        self.number = 0

    def to(self, number: int) -> None:
        while self.number < number:
            self.number += 1
            self.work.step(self.number)

    def follow(self, folder: Path) -> None:
        """Check that the table is as it is after its last step, or after some of the calls of the next one."""
        table = on_disk(str(folder), self.capacity)
        assert done(table) >= self.number, "a step that was there is gone"
        self.to(done(table))
        found, calls = content(table), self.work.parts(self.number + 1)[:-1]
        while content(self.work.table) != found:
            assert calls, "neither after the last step nor after a call of the next one"
            calls.pop(0)()


def kill_often(workers: Workers, folder: Path, capacity: int, times: int) -> None:
    oracle, draw = Oracle(capacity), random.Random(times)
    for _ in range(times):
        said = workers.run_and_kill(folder, capacity, draw)
        oracle.follow(folder)
        assert oracle.number >= said, "a step that was said to be done is not there"


@pytest.mark.parametrize("capacity", [SMALL, LARGE])
def test_every_step_that_was_done_survives_kills(workers: Workers, tmp_path: Path, capacity: int):
    kill_often(workers, tmp_path, capacity, times=12)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [SMALL, LARGE])
def test_every_step_that_was_done_survives_two_hundred_kills(workers: Workers, tmp_path: Path, capacity: int):
    kill_often(workers, tmp_path, capacity, times=200)


def roll_back_often(workers: Workers, folder: Path, times: int) -> None:
    work, draw = Work(on_disk(str(folder), SMALL), SMALL), random.Random(times)
    for number in range(1, 30):
        work.step(number)
    work.table.cut("here")  # pyright: ignore[reportAttributeAccessIssue]
    del work
    for _ in range(times):
        workers.run_and_kill(folder, SMALL, draw, back=True)
        oracle, cut = Oracle(SMALL), Oracle(SMALL)
        oracle.to(29)
        cut.to(29)
        oracle.follow(folder)
        assert oracle.number <= 29 + 4
        table = on_disk(str(folder), SMALL)
        table.roll_back("here")
        assert (done(table), content(table)) == (29, content(cut.work.table))
        del table  # which closes it


def test_a_cut_survives_kills(workers: Workers, tmp_path: Path):
    roll_back_often(workers, tmp_path, times=6)


@pytest.mark.slow
def test_a_cut_survives_a_hundred_kills(workers: Workers, tmp_path: Path):
    roll_back_often(workers, tmp_path, times=100)
