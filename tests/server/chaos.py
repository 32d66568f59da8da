"""Servers and counting trainers under a launcher, while somebody kills them."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybridrec.launch.child import Output, Start
from hybridrec.launch.supervisor import Limits, Supervisor
from tests.server.chaos_trainer import Task, checkpoint, expected
from tests.server.processes import PYTHON, ROOT

NO_LIMITS = Limits(servers=10**6, trainers=10**6)


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """A run: so many servers, on disk or in memory, and trainers."""

    servers: int = 2
    trainers: int = 1
    staleness: int = 0
    on_disk: bool = True
    save_every: int = 25
    pause: float = 0.002


class Outcome(NamedTuple):
    """What came of a run."""

    code: int
    steps: int
    kills: int
    lost: int  # updates of rows
    doubled: int
    wrong: str  # what trainers found to be wrong on their way
    starts: int  # of the trainers
    longest_pause: float  # seconds between two steps


class CountingRoles:
    """Servers of `hybridrec` and trainers that count; `reach` changes the addresses that trainers are told."""

    def __init__(self, chaos: Chaos, folder: Path, reach: Callable[[str], str] = str) -> None:
        self.servers, self.trainers = chaos.servers, chaos.trainers
        self._chaos, self._folder, self._reach = chaos, folder, reach
        self.starts = [0] * chaos.trainers
        self.again = "nothing"

    def server(self, number: int, port: int) -> Start:
        who = ["--number", str(number), "--of", str(self.servers), "--port", str(port)]
        where = ["--path", str(self._folder / f"rows-{number}")] if self._chaos.on_disk else []
        return Start([sys.executable, "-m", "hybridrec", "server", *who, *where], PYTHON)

    def trainer(self, rank: int, addresses: list[str], again: bool, port: int) -> Start:
        chaos, there = self._chaos, [self._reach(each) for each in addresses]
        task = Task(
            str(self._folder),
            rank,
            self.trainers,
            self.starts[rank],
            there,
            chaos.staleness,
            chaos.save_every,
            chaos.pause,
        )
        self.starts[rank] += 1
        return Start([sys.executable, "-m", "tests.server.chaos_trainer", json.dumps(asdict(task))], PYTHON)

    def watched_by(self, addresses: list[str]) -> str:
        return f"hybridrec top --servers {','.join(addresses)}"


Disturb = Callable[["Scene"], None]


class Scene:
    """What somebody who disturbs a run can see and do, in a thread of their own."""

    def __init__(self, supervisor: Supervisor, folder: Path, seed: int) -> None:
        self.supervisor, self.folder = supervisor, folder
        self.random, self.kills = random.Random(seed), 0

    def pids(self, role: str) -> list[int]:
        """The processes of a role that live."""
        return [pid for name, pid in self.supervisor.processes().items() if name.startswith(role)]

    def kill(self, *roles: str) -> None:
        """One process of each role, as soon as there is one."""
        for role in roles:
            while not self._killed(role):
                time.sleep(0.01)
            self.kills += 1

    def _killed(self, role: str) -> bool:
        """Kill one of a role, if there is one that has not ended by itself since it was seen."""
        there = self.pids(role)
        try:
            os.kill(self.random.choice(there), signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            return False
        return True

    def until_step(self, more: int) -> None:
        """Until the trainers have come so many steps further."""
        wanted = self.step() + more
        while self.step() < wanted:
            time.sleep(0.01)

    def step(self) -> int:
        """Steps done by trainer 0, those that were done again too."""
        file = self.folder / "times-0"
        return file.read_text().count("\n") if file.exists() else 0


def random_kills(count: int, longest: float = 0.6) -> Disturb:
    """So many kills of servers, trainers or both, at random moments; none before the first step."""

    def disturb(scene: Scene) -> None:
        scene.until_step(1)
        while scene.kills < count:
            if scene.random.random() < 0.5:
                scene.until_step(scene.random.randrange(1, 40))
            time.sleep(scene.random.uniform(0, longest))
            scene.kill(*scene.random.choice([("server",), ("trainer",), ("server", "trainer"), ("server", "server")]))

    return disturb


def run(chaos: Chaos, folder: Path, disturb: Disturb, seed: int = 0, reach: Callable[[str], str] = str) -> Outcome:
    """Train while somebody disturbs, then a little longer."""
    roles, looks = CountingRoles(chaos, folder, reach), itertools.count()
    supervisor = Supervisor(roles, NO_LIMITS, Output(9), lambda: f"checkpoint {next(looks)}")
    scene = Scene(supervisor, folder, seed)
    failed: list[Exception] = []

    def work() -> None:
        try:
            disturb(scene)
            scene.until_step(5)
        except Exception as error:
            failed.append(error)
        finally:
            (folder / "enough").touch()

    before = os.getcwd()
    os.chdir(ROOT)
    try:
        threading.Thread(target=work, daemon=True).start()
        code = supervisor.run()
    finally:
        os.chdir(before)
    for error in failed:
        raise error
    return _outcome(chaos, folder, code, scene.kills, max(roles.starts))


def _outcome(chaos: Chaos, folder: Path, code: int, kills: int, starts: int) -> Outcome:
    step, rows = checkpoint(folder)
    more = rows - expected(chaos.trainers, step)
    lost, doubled = int(np.maximum(-more[:, 0], 0).sum()), int(np.maximum(more[:, 0], 0).sum())
    mixed = int(((more[:, 0] == 0) & (more[:, 1] != 0)).sum())  # one lost and another doubled
    wrong = (folder / "wrong").read_text() if (folder / "wrong").exists() else ""
    pause = max(_pause(folder / f"times-{rank}") for rank in range(chaos.trainers))
    return Outcome(code, step, kills, lost + mixed, doubled + mixed, wrong, starts, pause)


def _pause(file: Path) -> float:
    times = [float(line.split()[0]) for line in file.read_text().splitlines()]
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)
