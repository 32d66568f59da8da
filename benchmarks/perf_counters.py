"""Instructions and cache misses of a step, by `perf stat`, where the machine shows its counters.

A process is counted twice with different numbers of steps: the difference leaves out its start and warm-up.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

EVENTS = ("instructions", "cache-misses")


def parse(text: str) -> dict[str, float] | None:
    """The counts in the output of `perf stat -x,`; None where an event is not supported or not counted."""
    counts: dict[str, float] = {}
    for line in text.splitlines():
        fields = line.split(",")
        event = next((e for e in EVENTS if len(fields) > 2 and e in fields[2]), None)
        if event is None:
            continue
        if not fields[0].replace(".", "").isdigit():
            return None
        counts[event] = counts.get(event, 0.0) + float(
            fields[0]
        )  # a machine with two kinds of cores has a line for each
    return counts if len(counts) == len(EVENTS) else None


def why_absent() -> str | None:
    """None where counters work, else the reason."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "perf"
        try:
            done = subprocess.run([*prefix(file), "true"], capture_output=True, text=True)
        except FileNotFoundError:
            return "perf is not installed"
        if done.returncode:
            return f"perf stat ended with status {done.returncode}: {done.stderr.strip()[:200]}"
        return None if parse(file.read_text()) else "the machine shows no hardware counters"


def prefix(file: Path) -> list[str]:
    return ["perf", "stat", "-x,", "-e", ",".join(EVENTS), "-o", str(file), "--"]


def per_step(run: Callable[[int, Sequence[str]], object], reps: int) -> dict[str, float] | None:
    """Counts per step; `run(reps, prefix)` runs a process of so many steps under the command `prefix`."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for times in (reps, 3 * reps):
            file = Path(folder) / f"perf{times}"
            run(times, prefix(file))
            found.append(parse(file.read_text()))
    low, high = found
    if low is None or high is None:
        return None
    return {event: (high[event] - low[event]) / (2 * reps) for event in EVENTS}
