"""Jobs that take turns, each in fresh processes: every job once per pass, every other pass backwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from peers.environment import Absent
from question import HERE, note

LIMIT_S = 1_800
STEADY_HEAP = {  # no memory goes back to the system between steps
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
Passes = dict[str, list[dict[str, Any]]]  # job: one answer per pass
Job = TypeVar("Job")


class Failed(Absent):
    """A job that gave no answer, with the reason."""


def take_turns(
    jobs: Mapping[str, Job], passes: int, run: Callable[[Job], dict[str, Any]], said: Callable[[dict[str, Any]], str]
) -> tuple[Passes, dict[str, str]]:
    """All answers of each job; one that fails is not tried again, and has a reason instead. `said` tells an answer."""
    answers: Passes = {name: [] for name in jobs}
    failed: dict[str, str] = {}
    for turn in range(passes):
        for name in [name for name in (jobs if turn % 2 == 0 else reversed(list(jobs))) if name not in failed]:
            try:
                answers[name].append(run(jobs[name]))
                note(f"pass {turn + 1}, {name}: {said(answers[name][-1])}")
            except Absent as reason:
                failed[name] = str(reason)
                note(f"{name} has no answer: {reason}")
    return {name: found for name, found in answers.items() if name not in failed}, failed


def answer_of(command: Sequence[str | Path], environment: dict[str, str]) -> dict[str, Any]:
    """What a process says in its last line that begins with @."""
    told: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run([str(part) for part in command], env=environment, timeout=LIMIT_S, **told)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {LIMIT_S} seconds") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if done.returncode or not answers:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Failed(f"it ended with status {done.returncode}: {said[-1]}")
    return json.loads(answers[-1][1:])


def environment_of(threads: int, steady: bool) -> dict[str, str]:
    """The variables of a job's process: where its modules are, its threads, its heap."""
    kept = {name: value for name, value in os.environ.items() if name not in STEADY_HEAP}
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**kept, **(STEADY_HEAP if steady else {}), **counts, "PYTHONPATH": os.pathsep.join(paths)}
