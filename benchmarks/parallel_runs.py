"""Processes of `parallel.py`: as many fresh ones for every job and pass as it has ranks, passes taken in turns.

All have a steady heap (no memory goes back to the system between steps), ours and the peer's alike.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from embedding_jobs import TORCHREC
from embedding_runs import STEADY_HEAP
from parallel_workload import Task
from peers.environment import Absent, interpreter

HERE = Path(__file__).parent
LIMIT_S = 600
Passes = dict[str, list[dict[str, Any]]]  # kind of job: one answer per pass


class Failed(Exception):
    """A job that gave no answer, with the reason."""


class Runner:
    """Starts jobs; the peer's environment is made on first use."""

    def __init__(self, venvs: Path, install: bool) -> None:
        self._venvs, self._install = venvs, install

    def run(self, task: Task) -> dict[str, Any]:
        """The answer of fresh ranks."""
        try:
            return answer_of(self._command(task), task)
        except Absent as reason:
            raise Failed(str(reason)) from None

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
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": str(task.threads), "MKL_NUM_THREADS": str(task.threads)}
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    world = {"WORLD_SIZE": str(task.world), "LOCAL_WORLD_SIZE": str(task.world)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, **STEADY_HEAP, **threads, **place, **world, **meeting, "PYTHONPATH": os.pathsep.join(paths)}


def take_turns(
    tasks: dict[str, Task], passes: int, run: Callable[[Task], dict[str, Any]], note: Callable[[str], None]
) -> tuple[Passes, dict[str, str]]:
    """Every job once per pass, every other pass backwards; one that fails is not tried again, and says why."""
    answers: Passes = {name: [] for name in tasks}
    failed: dict[str, str] = {}
    for turn in range(passes):
        for name in tasks if turn % 2 == 0 else reversed(tasks):
            if name in failed:
                continue
            try:
                answers[name].append(run(tasks[name]))
                note(f"pass {turn + 1}, {name}: {said(answers[name][-1])}")
            except Failed as reason:
                failed[name] = str(reason)
                note(f"{name} has no answer: {reason}")
    return {name: found for name, found in answers.items() if name not in failed}, failed


def said(answer: dict[str, Any]) -> str:
    """The most telling numbers of an answer."""
    told = ("rows_per_s", "step_ms", "collectives", "wire_bytes", "naive_bytes", "hidden")
    return ", ".join(f"{name} {answer[name]:,.4g}" for name in told if name in answer)
