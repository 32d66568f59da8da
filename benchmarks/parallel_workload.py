"""The batches of `parallel.py`, and what a rank of it is asked to do.

Ids follow a power law (exponent 1.05) over each table's rows, in an order of its own, one id per row and table. They
are written once into a cache folder, so that every contender reads the very same. NumPy alone, because the peer's
environment reads them too.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from embedding_workload import power_law

NUMBERS, ALPHA = 13, 1.05
BOTTOM, TOP = (64, 32), (64, 32)
LR, EPS, SQUARES = 0.02, 1e-8, 0.01  # SQUARES: where the dense Adagrad begins, so that no step hangs on a sign
CHECKED = 5  # steps whose losses are compared
_EDITION = 1  # part of the folder's name: raise it when the data change


@dataclass(frozen=True)
class Task:
    """What the ranks of one job do: a kind of run, how many ranks, with which sizes."""

    kind: str
    world: int
    cache: str
    tables: int = 26
    rows: int = 100_000  # of each table
    dim: int = 16
    batch: int = 8_192  # rows of each rank
    batches: int = 8  # distinct ones of each rank
    threads: int = 1  # of each rank
    warm: int = 8  # steps before the clock
    steps: int = 16  # of a stretch
    stretches: int = 4  # of which the fastest counts
    latency_ms: float = 2.0  # added to each message, where overlap is measured

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Rows:
    """The rows of one rank in one step."""

    ids: np.ndarray  # int64 [T, B]
    dense: np.ndarray  # float32 [B, 13]
    label: np.ndarray  # float32 [B]


def load(task: Task, rank: int) -> list[Rows]:
    """The batches of a rank, from the cache or made now."""
    name = f"{task.tables}x{task.rows}-b{task.batch}-n{task.batches}-a{ALPHA:g}-rank{rank}"
    folder = Path(task.cache) / f"parallel-{name}-v{_EDITION}"
    if not folder.exists():
        _write(folder, make(task, rank))
    return [
        Rows(*(np.load(folder / f"{part}-{i}.npy") for part in ("ids", "dense", "label"))) for i in range(task.batches)
    ]


def make(task: Task, rank: int) -> list[Rows]:
    """The batches of a rank; the same arguments give the same rows, and popular ids are so on all ranks."""
    orders = [np.random.default_rng([0, table]).permutation(task.rows) for table in range(task.tables)]
    return [_rows(task, orders, np.random.default_rng([1, rank, i])) for i in range(task.batches)]


def together(parts: list[Rows]) -> Rows:
    """The rows of all ranks in one batch: what a single process would be given."""
    ids = np.concatenate([part.ids for part in parts], 1)
    return Rows(ids, np.concatenate([p.dense for p in parts]), np.concatenate([p.label for p in parts]))


def naive_bytes(ids: np.ndarray, rank: int, world: int, dim: int) -> int:
    """What a rank would send and be sent for ids whose row is elsewhere, if each travelled as often as it occurs.

    Rows are dealt out by the remainder of their id; an id has 8 bytes, its row goes forth and its gradient back in
    float32. What one rank sends another receives, so that over all ranks each message counts once.
    """
    away = int((ids % world != rank).sum())
    return away * (8 + 2 * 4 * dim)


def _rows(task: Task, orders: list[np.ndarray], rng: np.random.Generator) -> Rows:
    ids = np.stack([order[power_law(rng, task.rows, ALPHA, task.batch)] for order in orders])
    dense = rng.standard_normal((task.batch, NUMBERS), dtype=np.float32)
    chance = 1 / (1 + np.exp(1 - dense[:, 0] - 0.3 * (ids[0] % 5 - 2)))
    return Rows(ids, dense, (rng.random(task.batch) < chance).astype(np.float32))


def _write(folder: Path, batches: list[Rows]) -> None:
    part = folder.with_name(f"{folder.name}.part{os.getpid()}")
    part.mkdir(parents=True)
    try:
        for i, rows in enumerate(batches):
            for name in ("ids", "dense", "label"):
                np.save(part / f"{name}-{i}.npy", getattr(rows, name))
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def weights_file(task: Task) -> Path:
    """Where the weights of our model lie, from which the peer's check begins."""
    return Path(task.cache) / f"parallel-weights-{task.tables}x{task.rows}x{task.dim}.npz"


def say(answer: dict[str, Any]) -> None:
    """The answer of a job: a line that begins with @."""
    print("@" + json.dumps(answer), flush=True)
