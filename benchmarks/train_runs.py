"""Processes of `train_cpu.py`: a fresh one for every job and pass, passes taken in turns.

Peers get a steady heap (no memory goes back to the system between steps), which is their best case; ours does not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import turns
from question import HERE
from train_workload import Task

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
    command = [sys.executable, HERE / PROGRAMS[task.kind], task.to_json()]
    return turns.answer_of(command, environment(task))


def environment(task: Task) -> dict[str, str]:
    """The variables of a job's process."""
    return turns.environment_of(task.threads, steady=PROGRAMS[task.kind].startswith("peers/"))


def said(answer: dict[str, Any]) -> str:
    """The most telling numbers of an answer."""
    told = ("rows_per_s", "loader_wait", "share", "save_stall_steps", "slowdown", "restore_vs_disk")
    return ", ".join(f"{name} {answer[name]:,.3g}" for name in told if name in answer)
