"""Processes of `train_cpu.py`: a fresh one for every job and pass, passes taken in turns.

Peers get a steady heap (no memory goes back to the system between steps), which is their best case; ours does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedding_runs import STEADY_HEAP
from train_workload import Task

HERE = Path(__file__).parent
LIMIT_S = 1_800
PROGRAMS = {
    "check": "train_check.py",
    "ours": "train_ours.py",
    "plain_bags": "peers/plain_pytorch_train.py",
    "plain_bags_inline": "peers/plain_pytorch_train.py",
    "plain_big": "peers/plain_pytorch_train.py",
    "plain_big_inline": "peers/plain_pytorch_train.py",
    "rowwise": "peers/rowwise_train.py",
    "overhead": "train_overhead.py",
    "save_fixed": "train_save.py",
    "save_dynamic": "train_save.py",
}
Passes = dict[str, list[dict[str, Any]]]  # kind of job: one answer per pass


class Failed(Exception):
    """A process that gave no answer, with the reason."""


@dataclass(frozen=True)
class Plan:
    """The task that all jobs share, and the shorter file of the row-wise peer and the check."""

    base: Task
    short: Path

    def task(self, kind: str) -> Task:
        path = str(self.short) if kind in ("check", "rowwise") else self.base.path
        return replace(self.base, kind=kind, path=path)


def run(task: Task) -> dict[str, Any]:
    """The answer of a fresh process."""
    command = [sys.executable, str(HERE / PROGRAMS[task.kind]), task.to_json()]
    try:
        done = subprocess.run(command, env=environment(task), capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {LIMIT_S} seconds") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if done.returncode or not answers:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Failed(f"it ended with status {done.returncode}: {said[-1]}")
    return json.loads(answers[-1][1:])


def environment(task: Task) -> dict[str, str]:
    """The variables of a job's process."""
    kept = {name: value for name, value in os.environ.items() if name not in STEADY_HEAP}
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    heap = STEADY_HEAP if PROGRAMS[task.kind].startswith("peers/") else {}
    threads = {"OMP_NUM_THREADS": str(task.threads), "MKL_NUM_THREADS": str(task.threads)}
    return {**kept, **heap, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def take_turns(
    plan: Plan, kinds: list[str], passes: int, note: Callable[[str], None], run: Callable[[Task], dict[str, Any]] = run
) -> tuple[Passes, dict[str, str]]:
    """Every job once per pass, every other pass backwards; one that fails is not tried again, and says why."""
    answers: Passes = {kind: [] for kind in kinds}
    failed: dict[str, str] = {}
    for turn in range(passes):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            if kind in failed:
                continue
            try:
                answers[kind].append(run(plan.task(kind)))
                note(f"pass {turn + 1}, {kind}: {said(answers[kind][-1])}")
            except Failed as reason:
                failed[kind] = str(reason)
                note(f"{kind} has no answer: {reason}")
    return {kind: found for kind, found in answers.items() if kind not in failed}, failed


def said(answer: dict[str, Any]) -> str:
    """The most telling numbers of an answer."""
    told = ("rows_per_s", "loader_wait", "share", "save_stall_steps", "slowdown", "restore_vs_disk")
    return ", ".join(f"{name} {answer[name]:,.3g}" for name in told if name in answer)
