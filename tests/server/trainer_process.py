"""A trainer as a process: it looks up and pushes random ids for some steps, by servers, and ends.

python -m tests.server.trainer_process ADDRESSES TRAINER TRAINERS STALENESS STEPS
"""

from __future__ import annotations

import sys

import numpy as np

from hybridrec.server.client import Servers
from hybridrec.server.placement import owners
from tests.patience import PATIENCE
from tests.server.counting import NUMBERS, attached

IDS = 500  # that there are


def drawn(trainer: int, step: int) -> np.ndarray:
    """The ids that a trainer pushes in a step."""
    return np.unique(np.random.default_rng([trainer, step]).integers(0, IDS, 60))


def run(addresses: list[str], trainer: int, trainers: int, staleness: int, steps: int) -> None:
    """Train for so many steps."""
    with Servers.connect(addresses, deadline=PATIENCE) as servers:
        session = attached(servers, 1, trainer, trainers, staleness, eviction="lfu")
        for step in range(steps):
            ids = drawn(trainer, step)
            owner = owners(ids, servers.count)
            parts = [ids[owner == server] for server in range(servers.count)]
            asked = [
                session.lookup(server, 0, step, [0], [len(part)], part, train=True) for server, part in enumerate(parts)
            ]
            for answer in asked:
                answer.result()
            for server, part in enumerate(parts):
                session.push(server, 0, step, [0], [len(part)], part, np.ones(2 * len(part), np.float32), NUMBERS)
        session.drain()


if __name__ == "__main__":
    run(sys.argv[1].split(","), *map(int, sys.argv[2:]))
