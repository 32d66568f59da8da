"""Training on the stand-in card, in which each batch is placed one step ahead and nobody waits for a loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import hybridrec as hr
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.train import fixed_batch, graphs
from hybridrec.train.step import train_step
from hybridrec.types import Batch, IdBlock
from tests.embedding.gpu import replayed
from tests.embedding.gpu.replayed import Run, scored
from tests.ops.row_cache.caches import SMALL

THERE = torch.device("cuda", 0)
ROOM = 8  # ids of a ragged feature that a graph has room for: one does for all batches


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "DEVICE", THERE)
    monkeypatch.setattr(graphs, "SEEN", 1)
    monkeypatch.setattr(fixed_batch, "room", lambda count: ROOM)


def store(table: hr.Table, seed: int) -> DeviceStore:
    if table.cache is not None:
        return TieredStore(table, seed, THERE, table.cached(table.fixed_rows), sizes=SMALL)
    return DeviceHashStore(table, seed, THERE, slots=2) if table.dynamic else DeviceStore(table, seed, THERE)


def train(run: Run, batches: Sequence[Batch]) -> None:
    """Steps on these batches; what came of them is not waited for."""
    coming = run.learner.place(batches[0])
    for number in range(len(batches)):
        now = coming
        if number + 1 < len(batches):
            coming = run.learner.place(batches[number + 1])
        train_step(run.learner, [now])


DIM, ROWS, CACHE = 4, 40, 8


def small(replays: bool, cache: int | None = None, path: Path | None = None, **options: Any) -> Run:
    """One table of rows 0 … 39, of which the card may have few."""
    made = hr.Table("user", DIM, rows=ROWS, cache=cache, path=path, **options)
    return Run([made], store, graphs=replays)


def batch(number: int) -> Batch:
    """Two new rows, and one of the batch before: two batches in flight need six of the eight that a cache has."""
    first = 3 * number
    ids = [first % ROWS, (first + 1) % ROWS, (first - 3) % ROWS]
    return scored(IdBlock.from_ragged({"user": torch.tensor(ids)}), DIM)
