"""What survives, for `servers.py`: updates when processes are killed, and memory when the load is uneven."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from question import note
from servers_processes import Server, environment, resident_bytes

from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Column, Declaration, Rule
from hybridrec.server.protocol import Kind

DIM, CAPACITY, IDS = 16, 100_000, 400_000  # more ids than rows: they come and go
STALENESS = 4
RULE = Rule("adagrad", (Column("sum", False, 0.1),))
NUMBERS = np.array([[0.05, 0, 0, 1e-10, 0, 0, 0, 0, 0, np.inf, np.inf, 1, 1]])
SAMPLES = 400  # of memory


def kills(count: int) -> dict[str, Any]:
    """Two trainers and two servers with rows on disk; of all four, one or two are killed again and again."""
    from tests.server.chaos import Chaos, random_kills, run

    with tempfile.TemporaryDirectory() as folder, _onto_stderr():
        outcome = run(Chaos(trainers=2, staleness=1), Path(folder), random_kills(count))
    note(f"{outcome}")
    fine = outcome.code == 0 and not outcome.wrong
    return {
        "kills_survived": outcome.kills if fine else 0,
        "updates_lost": outcome.lost,
        "updates_doubled": outcome.doubled,
        "longest_pause_s": outcome.longest_pause,
        "outcome": outcome._asdict(),
    }


@contextmanager
def _onto_stderr():
    """What processes print is no part of the answer."""
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = before


def memory(seconds: float) -> dict[str, Any]:
    """The memory of a server, and of a fresh process with two trainers."""
    command = [sys.executable, __file__, str(seconds)]
    run = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(run.stdout.splitlines()[-1])
    note(f"growth {answer['growth']}")
    return answer


def grown(seconds: float) -> dict[str, Any]:
    """How much both grow: the last third of the time over the middle third, less 1."""
    server = Server()
    end, wrong = End(), []
    trainers = [threading.Thread(target=_load, args=(server.address, rank, end, wrong)) for rank in range(2)]
    for each in trainers:
        each.start()
    samples: dict[str, list[int]] = {"server": [], "trainers": []}
    until = time.monotonic() + seconds
    while time.monotonic() < until and not wrong:
        time.sleep(seconds / SAMPLES)
        samples["server"].append(resident_bytes(server.process.pid))
        samples["trainers"].append(resident_bytes(os.getpid()))
    end.wanted.set()
    for each in trainers:
        each.join()
    server.end()
    if wrong:
        raise RuntimeError(f"a trainer failed: {wrong[0]!r}") from wrong[0]
    growth = {who: _growth(values) for who, values in samples.items()}
    thin = {who: [round(value / 2**20, 1) for value in values[:: SAMPLES // 100]] for who, values in samples.items()}
    return {"memory_growth": max(growth.values()), "growth": growth, "seconds": seconds, "mib": thin}


class End:
    """The step at which both trainers end, or one would wait for the other: the first of them names it in time."""

    def __init__(self) -> None:
        self.wanted, self._step = threading.Event(), sys.maxsize

    def reached(self, trainer: int, step: int) -> bool:
        if trainer == 0 and self.wanted.is_set():
            self._step = min(self._step, step + 2 * STALENESS + 2)  # the other is nearer than that
        return step >= self._step


def _growth(values: list[int]) -> float:
    third = len(values) // 3
    return statistics.mean(values[-third:]) / statistics.mean(values[third : 2 * third]) - 1


def _load(address: str, rank: int, end: End, wrong: list[BaseException]) -> None:
    """One of two trainers: messages of 10 to 20,000 ids, bursts and pauses; now one is ahead, now the other."""
    try:
        with Servers.connect([address], name=f"trainer {rank}") as servers:
            session = Session(servers, 1, rank, 2, staleness=STALENESS)
            session.attach(0, [Declaration("item", DIM, CAPACITY, eviction="lru")])
            session.change(0, Kind.RULE, "item", {"rule": RULE.to_json()}, together=True).result()
            _steps(session, random.Random(rank), end)
    except BaseException as error:
        wrong.append(error)


def _steps(session: Session, dice: random.Random, end: End) -> None:
    generator, step, pause = np.random.default_rng(session.trainer), 0, 0.0
    while not end.reached(session.trainer, step):
        if step % 50 == 0:
            pause = dice.choice((0.0, 0.0, 0.002, 0.02))
        many = int(10 ** dice.uniform(1, 4.3))
        ids = np.unique(generator.integers(0, IDS, many))
        found = session.lookup(0, 0, step, [0], [len(ids)], ids, train=True).result()
        time.sleep(pause)
        session.push(0, 0, step, [0], [len(ids)], ids, found, NUMBERS)
        step += 1
    session.drain()


if __name__ == "__main__":
    print(json.dumps(grown(float(sys.argv[1]))))
