"""Whoever is killed, whenever: every update counts once."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from hybridrec.server.client import Servers, Session
from hybridrec.server.protocol import Kind
from tests.parallel.relay import Relay
from tests.server.chaos import Chaos, Outcome, Scene, random_kills, run
from tests.server.counting import RULE, counter, look, push
from tests.server.processes import ServerProcess


def check(outcome: Outcome) -> None:
    """Nothing is lost, nothing is doubled."""
    assert outcome.code == 0
    assert (outcome.lost, outcome.doubled, outcome.wrong) == (0, 0, "")
    assert outcome.steps > 0


def test_trainers_go_on_when_servers_with_rows_on_disk_are_killed(tmp_path: Path):
    def disturb(scene: Scene) -> None:
        for _ in range(2):
            scene.until_step(15)
            scene.kill("server")

    outcome = run(Chaos(staleness=1), tmp_path, disturb)
    check(outcome)
    assert (outcome.kills, outcome.starts) == (2, 1)


@pytest.mark.slow
def test_a_killed_trainer_and_a_killed_server_in_memory_cost_steps_and_no_update(tmp_path: Path):
    def disturb(scene: Scene) -> None:
        scene.until_step(30)
        scene.kill("server", "trainer")

    outcome = run(Chaos(on_disk=False, save_every=10), tmp_path, disturb)
    check(outcome)
    assert outcome.kills == 2


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "trainers", "staleness"), [(2, 1, 0), (2, 2, 4), (5, 3, 1)])
def test_kills_of_servers_with_rows_on_disk_and_of_trainers_lose_and_double_nothing(
    tmp_path: Path, servers: int, trainers: int, staleness: int
):
    chaos = Chaos(servers=servers, trainers=trainers, staleness=staleness)
    outcome = run(chaos, tmp_path, random_kills(24), seed=trainers + 10 * staleness)
    check(outcome)
    assert outcome.kills >= 20


@pytest.mark.slow
@pytest.mark.parametrize(("trainers", "staleness"), [(1, 4), (2, 0)])
def test_kills_of_servers_in_memory_roll_back_to_the_checkpoint(tmp_path: Path, trainers: int, staleness: int):
    chaos = Chaos(trainers=trainers, staleness=staleness, on_disk=False, save_every=10)
    outcome = run(chaos, tmp_path, random_kills(20), seed=trainers + 10 * staleness)
    check(outcome)
    assert outcome.kills >= 20


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 4])
def test_a_server_that_is_stopped_for_ten_seconds_costs_ten_seconds(tmp_path: Path, staleness: int):
    def disturb(scene: Scene) -> None:
        scene.until_step(20)
        stopped = scene.pids("server 1")[0]
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(10)
        os.kill(stopped, signal.SIGCONT)

    outcome = run(Chaos(trainers=2, staleness=staleness), tmp_path, disturb)
    check(outcome)
    assert outcome.starts == 1
    assert outcome.longest_pause > 8


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 4])
def test_a_slow_server_is_waited_for(tmp_path: Path, staleness: int):
    slow: list[str] = []

    def first_is_slow(address: str) -> str:
        slow[:] = slow or [address]
        return relay.reach(address) if address == slow[0] else address

    with Relay(0.05) as relay:
        outcome = run(Chaos(staleness=staleness), tmp_path, lambda scene: scene.until_step(60), reach=first_is_slow)
    check(outcome)
    assert outcome.starts == 1


@pytest.mark.slow
def test_a_full_disk_fails_the_lookup_that_needs_room_and_nothing_else(tmp_path: Path):
    old, new = list(range(50)), list(range(1000, 150_000))
    with ServerProcess("--path", str(tmp_path)) as server, Servers.connect([server.address]) as servers:
        session = Session(servers, 1, staleness=0)
        session.attach(0, [counter(capacity=10**6)])
        session.change(0, Kind.RULE, "count", {"rule": RULE}).result()
        look(session, 0, old)
        push(session, 0, old).result()
        largest = max(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        with pytest.raises(RuntimeError, match=r"server 0: .*the disk is full: \d+ bytes more are needed"):
            look(session, 1, new)
        assert look(session, 1, old) == [1] * 50
        push(session, 1, old).result()
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        assert look(session, 2, [*old, *new]) == [2] * 50 + [0] * len(new)
        server.end(signal.SIGKILL)
        with ServerProcess("--path", str(tmp_path), port=server.port):
            assert look(session, 2, old, train=False) == [2] * 50
