"""Processes of `embedding_cpu.py`: a fresh one for every contender and pass, passes taken in turns.

Peers get a steady heap (no memory goes back to the system between steps), which is their best case; ours does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from embedding_jobs import Job
from peers.environment import Absent, Peer, interpreter

HERE = Path(__file__).parent
STEADY_HEAP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
LIMIT_S = 1_800
Passes = dict[str, dict[str, list[dict[str, Any]]]]  # setting, name of the job, one answer per pass


class Runner:
    """Starts jobs; the peers' environments are made on first use."""

    def __init__(self, venvs: Path, install: bool) -> None:
        self._venvs, self._install = venvs, install
        self._pythons: dict[Peer, Path | Absent] = {}

    def run(self, job: Job, prefix: Sequence[str] = ()) -> dict[str, Any]:
        """The answer of a fresh process; `prefix` is a command that starts it (perf)."""
        folder = HERE / "peers" if job.peer else HERE
        command = [*prefix, str(self._python(job.peer)), str(folder / job.program), job.task.to_json()]
        try:
            done = subprocess.run(
                command, env=environment(job), capture_output=True, text=True, errors="replace", timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise Absent(f"no answer in {LIMIT_S} seconds") from None
        answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
        if done.returncode or not answers:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise Absent(f"it ended with status {done.returncode}: {said[-1]}")
        return json.loads(answers[-1][1:])

    def _python(self, peer: Peer | None) -> Path:
        if peer is None:
            return Path(sys.executable)
        if peer not in self._pythons:
            try:
                self._pythons[peer] = interpreter(peer, self._venvs, self._install)
            except Absent as reason:
                self._pythons[peer] = reason
        found = self._pythons[peer]
        if isinstance(found, Absent):
            raise found
        return found


def environment(job: Job) -> dict[str, str]:
    """The variables of a job's process."""
    kept = {name: value for name, value in os.environ.items() if name not in STEADY_HEAP}
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = str(job.task.threads)
    return {
        **kept,
        **(STEADY_HEAP if job.peer else {}),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


def take_turns(
    jobs: list[Job], passes: int, run: Callable[[Job], dict[str, Any]], note: Callable[[str], None]
) -> tuple[Passes, dict[str, str]]:
    """Every job once per pass, every other pass backwards; a job that fails is not tried again.

    Gives the answers, and the reasons of those that have none.
    """
    answers: Passes = defaultdict(lambda: defaultdict(list))
    absent: dict[str, str] = {}
    for turn in range(passes):
        for job in jobs if turn % 2 == 0 else reversed(jobs):
            if str(job) in absent:
                continue
            try:
                answers[job.setting][job.name].append(run(job))
                note(f"pass {turn + 1}, {job}: {_said(answers[job.setting][job.name][-1])}")
            except Absent as reason:
                absent[str(job)] = str(reason)
                answers[job.setting].pop(job.name, None)
                note(f"{job} has no answer: {reason}")
    return answers, absent


def _said(answer: dict[str, Any]) -> str:
    if "bytes_per_s" in answer:
        return f"{answer['bytes_per_s'] / 1e9:.1f} GB/s"
    return f"{answer['step_ms']:.1f} ms, forward {answer['forward_ms']:.1f}"
