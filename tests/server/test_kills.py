"""Servers and trainers, all of them processes: servers are killed, and no update or lookup is lost or doubled."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hybridrec.server.channel import split_address
from hybridrec.server.client import Servers
from hybridrec.server.placement import owners
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.stream import Stream, receive_message, send_message
from tests.patience import PATIENCE
from tests.server.processes import PYTHON, ROOT, ServerProcess
from tests.server.trainer_process import IDS, drawn


def expected(trainers: int, steps: int) -> np.ndarray:
    """How often each id was looked up, and pushed."""
    counts = np.zeros(IDS)
    for trainer in range(trainers):
        for step in range(steps):
            counts[drawn(trainer, step)] += 1
    return counts


def found(addresses: list[str]) -> dict[str, np.ndarray]:
    """How often the servers say it was, by what they have counted of lookups, and by what pushes have added."""
    looked, pushed = np.zeros((2, IDS))
    with Servers.connect(addresses) as servers:
        for server in range(servers.count):
            mine = servers.ask(server, Kind.IDS, {"table": "count"}).result().array(0, "<i8", -1)
            assert (owners(mine, servers.count) == server).all()
            rows = servers.ask(server, Kind.ROWS, {"table": "count"}, [mine]).result()
            pushed[mine], looked[mine] = rows.array(1, "<f4", -1, 2)[:, 0], rows.array(3, "<i8", -1)
    return {"looked": looked, "pushed": pushed}


def wait_for_work(address: str, jobs: list[subprocess.Popen]) -> None:
    """Until trainers have found a server and pushed to it, or are done."""
    with socket.create_connection(split_address(address)) as connection:
        stream = Stream(connection, PATIENCE)
        send_message(stream, Message(Kind.HELLO, {"token": "", "client": "test"}))
        receive_message(stream)
        while any(job.poll() is None for job in jobs):
            send_message(stream, Message(Kind.STATS))
            if receive_message(stream).fields["pushes"]:
                return
            time.sleep(0.02)


def trained(folder: Path, count: int, trainers: int, staleness: int, steps: int, kills: int) -> dict[str, np.ndarray]:
    """Train while servers are killed; what they have at the end."""
    draw = random.Random(count * 10 + trainers)
    with ExitStack() as stack:
        options = [["--number", str(n), "--of", str(count), "--path", str(folder / str(n))] for n in range(count)]
        servers = [stack.enter_context(ServerProcess(*each)) for each in options]
        addresses = [server.address for server in servers]
        command = [sys.executable, "-m", "tests.server.trainer_process", ",".join(addresses)]
        jobs = [
            subprocess.Popen([*command, *map(str, (rank, trainers, staleness, steps))], cwd=ROOT, env=PYTHON)
            for rank in range(trainers)
        ]
        for _ in range(kills):
            victim = draw.randrange(count)
            wait_for_work(servers[victim].address, jobs)
            time.sleep(draw.uniform(0, 0.2))
            servers[victim].end(signal.SIGKILL)
            servers[victim] = stack.enter_context(ServerProcess(*options[victim], port=servers[victim].port))
        assert [job.wait(PATIENCE) for job in jobs] == [0] * trainers
        return found(addresses)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_servers_that_are_killed_lose_and_double_nothing(tmp_path, count, trainers):
    staleness = 3 * ((count + trainers) % 2)
    counted = trained(tmp_path, count, trainers, staleness, steps=200, kills=4)
    for what, times in counted.items():
        assert (times == expected(trainers, 200)).all(), what
