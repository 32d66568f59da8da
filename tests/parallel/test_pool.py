"""The pool of rank processes that tests of parallel training run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.parallel.pool import Pool, RankFailed, pool
from tests.patience import wait_for

ECHO = "tests.parallel.jobs.echo"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_runs_the_job_and_hears_the_others(world: int) -> None:
    found = pool(world).run(f"{ECHO}:here", word="hello")
    assert [each["rank"] for each in found] == list(range(world))
    assert all(each["told"] == list(range(world)) for each in found)
    assert all(each["word"] == "hello" and each["threads"] == 1 and each["world"] == world for each in found)


def test_processes_are_kept_from_job_to_job() -> None:
    pool(2).run(f"{ECHO}:here", word="a")
    before = pool(2).pids
    pool(2).run(f"{ECHO}:here", word="b")
    assert pool(2).pids == before


def test_tensors_travel_both_ways() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    for found in pool(2).run(f"{ECHO}:doubled", values=values):
        assert torch.equal(found["twice"][0], values * 2)
        assert found["twice"][1].dtype == torch.bfloat16
        assert found["empty"].shape == (0, 3)
        assert found["none"] is None


@pytest.mark.parametrize(
    ("how", "words"),
    [("raise", "the item that is not there"), ("warn", "nobody asked for"), ("die", "rank 1: the process ended")],
)
def test_a_rank_that_fails_is_named_and_its_world_made_anew(how: str, words: str) -> None:
    with pytest.raises(RankFailed, match=words):
        pool(2).run(f"{ECHO}:failing", rank=1, how=how)
    assert [each["rank"] for each in pool(2).run(f"{ECHO}:here", word="again")] == [0, 1]


def test_a_hang_ends_in_time_and_says_where_each_rank_stood() -> None:
    pool(2).run(f"{ECHO}:here", word="there")
    pids = pool(2).pids
    with pytest.raises(RankFailed, match=r"not done within 2 s(.|\n)*in failing"):
        pool(2).run(f"{ECHO}:failing", rank=1, how="hang", within=2)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_the_answers_to_a_job_that_was_left_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: Any) -> None:
        raise KeyboardInterrupt

    pool(2).run(f"{ECHO}:here", word="before")
    with monkeypatch.context() as here:
        here.setattr(Pool, "_outcomes", leave)
        with pytest.raises(KeyboardInterrupt):
            pool(2).run(f"{ECHO}:here", word="left")
    assert [each["word"] for each in pool(2).run(f"{ECHO}:here", word="next")] == ["next", "next"]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_rank_processes_end_with_the_session(sign: signal.Signals) -> None:
    program = "\n".join(
        [
            "import signal, time",
            "from tests.parallel.pool import pool",
            "signal.signal(signal.SIGINT, signal.default_int_handler)",  # ignored where pytest runs in the background
            "pool(2).run('tests.parallel.jobs.echo:here', word='')",
            "print(*pool(2).pids, flush=True)",
            "while True: time.sleep(0.1)",  # a signal that comes just before Python sleeps is noted when it wakes
        ]
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as session:
        assert session.stdout is not None
        pids = session.stdout.readline().split()
        session.send_signal(sign)
    assert len(pids) == 2
    wait_for(lambda: not any(os.path.exists(f"/proc/{int(pid)}") for pid in pids))
