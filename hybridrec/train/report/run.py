"""Reads a run directory. What is missing or half-written becomes a note for the page, not an error."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Record = dict[str, Any]
SHOWN = 5  # faulty lines named in a note


@dataclass
class Run:
    """What a run directory says of itself. Files that are not there are empty here."""

    path: Path
    records: list[Record] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Record]:
        """The records of these kinds, in order."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], [])
        return [record for record in self.records if record["kind"] in kinds]

    @cached_property
    def _by_kind(self) -> dict[str, list[Record]]:
        made: dict[str, list[Record]] = {}
        for record in self.records:
            made.setdefault(record["kind"], []).append(record)
        return made


def read(run_dir: str | Path) -> Run:
    """The run in this directory.

    >>> read("/nowhere")
    Traceback (most recent call last):
    ValueError: no run directory at /nowhere; give the out= of a Trainer, or --out of `hybridrec train`
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise ValueError(f"no run directory at {path}; give the out= of a Trainer, or --out of `hybridrec train`")
    run = Run(path)
    run.records = _records(path / "metrics.jsonl", run.notes)
    for name in ("config", "schema", "plan", "environment"):
        setattr(run, name, _document(path / f"{name}.json", run.notes))
    return run


def _document(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{file.name} is missing.")
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{file.name} cannot be read: {error}")
    else:
        if isinstance(found, dict):
            return found
        notes.append(f"{file.name} holds a {type(found).__name__}, not an object; it is left out.")
    return {}


def _records(file: Path, notes: list[str]) -> list[Record]:
    records, bad = [], []
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        notes.append(f"{file.name} is missing." if missing else f"{file.name} cannot be read: {error}")
        return []
    for number, line in enumerate(lines, 1):
        if line.strip():
            record = _record(line)
            bad.append(number) if record is None else records.append(record)
    if bad:
        named = ", ".join(map(str, bad[:SHOWN])) + (f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else "")
        notes.append(f"metrics.jsonl: line {named} is cut off, or no record with a kind and a step; left out.")
    return _without_replayed(records, notes)


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    step = record.get("step")
    return record if isinstance(step, int | float) and 0 <= step < 2**53 else None


def _without_replayed(records: list[Record], notes: list[str]) -> list[Record]:
    """A run that was killed and resumed from an older checkpoint repeats steps: the later records stand."""
    standing: dict[str, list[int]] = {}  # by kind, the places of records that no later one has replaced
    for place, record in enumerate(records):
        places = standing.setdefault(record["kind"], [])
        if places and record["step"] < records[places[-1]]["step"]:
            while places and records[places[-1]]["step"] >= record["step"]:
                places.pop()
        places.append(place)
    kept = sorted(place for places in standing.values() for place in places)
    if dropped := len(records) - len(kept):
        notes.append(f"{dropped} records of steps that were run again after a resume are left out.")
    return [records[place] for place in kept]
