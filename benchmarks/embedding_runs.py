"""Processes of `embedding_cpu.py`: a fresh one for every contender and pass, passes taken in turns.

Peers get a steady heap (no memory goes back to the system between steps), which is their best case; ours does not.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import turns
from embedding_jobs import Job
from peers.environment import Absent, Peer, interpreter
from question import HERE

Passes = dict[str, dict[str, list[dict[str, Any]]]]  # setting, name of the job, one answer per pass


class Runner:
    """Starts jobs; the peers' environments are made on first use."""

    def __init__(self, venvs: Path, install: bool) -> None:
        self._venvs, self._install = venvs, install
        self._pythons: dict[Peer, Path | Absent] = {}

    def run(self, job: Job, prefix: Sequence[str] = ()) -> dict[str, Any]:
        """The answer of a fresh process; `prefix` is a command that starts it (perf)."""
        folder = HERE / "peers" if job.peer else HERE
        command = [*prefix, self._python(job.peer), folder / job.program, job.task.to_json()]
        return turns.answer_of(command, environment(job))

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
    return turns.environment_of(job.task.threads, steady=job.peer is not None)


def take_turns(jobs: list[Job], passes: int, run: Callable[[Job], dict[str, Any]]) -> tuple[Passes, dict[str, str]]:
    """The answers, by setting and name, and the reasons of those that have none."""
    found, failed = turns.take_turns({str(job): job for job in jobs}, passes, run, _said)
    answers: Passes = defaultdict(dict)
    for job in jobs:
        answers[job.setting] |= {job.name: found[str(job)]} if str(job) in found else {}
    return answers, failed


def _said(answer: dict[str, Any]) -> str:
    if "bytes_per_s" in answer:
        return f"{answer['bytes_per_s'] / 1e9:.1f} GB/s"
    return f"{answer['step_ms']:.1f} ms, forward {answer['forward_ms']:.1f}"
