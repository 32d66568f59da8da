"""Processes of `parallel.py`: as many fresh ones for every job and pass as it has ranks, passes taken in turns.

All have a steady heap (no memory goes back to the system between steps), ours and the peer's alike.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from embedding_jobs import TORCHREC
from parallel_workload import Task
from peers.environment import interpreter
from question import HERE
from turns import Failed, environment_of

LIMIT_S = 600


class Runner:
    """Starts jobs; the peer's environment is made on first use."""

    def __init__(self, venvs: Path, install: bool) -> None:
        self._venvs, self._install = venvs, install

    def run(self, task: Task) -> dict[str, Any]:
        """The answer of fresh ranks."""
        return answer_of(self._command(task), task)

    def _command(self, task: Task) -> list[str]:
        if not task.kind.startswith("torchrec"):
            return [sys.executable, str(HERE / "parallel_ours.py"), task.to_json()]
        python = interpreter(TORCHREC, self._venvs, self._install)
        return [str(python), str(HERE / "peers" / "torchrec_dmp.py"), task.to_json()]


def answer_of(command: list[str], task: Task, limit: float = LIMIT_S) -> dict[str, Any]:
    """Run the command as every rank; the answer is the line that begins with @, which one of them says."""
    port = free_port()
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(2 * task.world)]
        ranks = [
            subprocess.Popen(command, env=environment(task, rank, port), stdout=out, stderr=err, text=True)
            for rank, (out, err) in enumerate(zip(files[::2], files[1::2], strict=True))
        ]
        wait_for(ranks, files[1::2], limit)
        said = [line for out in files[::2] for line in lines_of(out) if line.startswith("@")]
    if not said:
        raise Failed("no rank gave an answer")
    return json.loads(said[-1][1:])


def wait_for(ranks: list[subprocess.Popen[str]], errors: Sequence[IO[str]], limit: float) -> None:
    """Until all ranks have ended; where one fails or time is up, the others are ended too."""
    end = time.monotonic() + limit
    try:
        while (codes := [process.poll() for process in ranks]).count(0) < len(ranks):
            if bad := [rank for rank, code in enumerate(codes) if code]:
                last = (lines_of(errors[bad[0]]) or ["it said nothing"])[-1]
                raise Failed(f"rank {bad[0]} ended with status {codes[bad[0]]}: {last}")
            if time.monotonic() > end:
                raise Failed(f"no answer in {limit:g} seconds")
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def lines_of(file: IO[str]) -> list[str]:
    file.seek(0)
    return [line for line in file.read().splitlines() if line.strip()]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(task: Task, rank: int, port: int) -> dict[str, str]:
    """The variables of a rank's process: those of torchrun, its threads, its heap."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    world = {"WORLD_SIZE": str(task.world), "LOCAL_WORLD_SIZE": str(task.world)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**environment_of(task.threads, steady=True), **place, **world, **meeting}


def said(answer: dict[str, Any]) -> str:
    """The most telling numbers of an answer."""
    told = ("rows_per_s", "step_ms", "collectives", "wire_bytes", "naive_bytes", "hidden")
    return ", ".join(f"{name} {answer[name]:,.4g}" for name in told if name in answer)
