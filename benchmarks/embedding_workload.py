"""The id batches of `embedding_cpu.py`: written once into a cache folder, so that every contender reads the very same.

A table's ids follow a power law (exponent 1.05) over its rows, in an order of its own: popular rows lie anywhere.
NumPy alone, because the peers' environments read them too.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

_EDITION = 1  # part of the folder's name: raise it when the data change


@dataclass(frozen=True)
class Setting:
    """Columns of a row, and ids per bag: 1, or ragged over 0..2 * hot (so `hot` on average)."""

    dim: int
    hot: int

    @property
    def name(self) -> str:
        return f"d{self.dim}-hot{self.hot}"

    @classmethod
    def parse(cls, name: str) -> Setting:
        found = re.fullmatch(r"d(\d+)-hot(\d+)", name)
        if not found:
            raise ValueError(f"setting {name!r} must be like d128-hot10: columns of a row, then ids per bag")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Shape:
    """What all settings share."""

    tables: int = 26
    rows: int = 100_000
    batch: int = 8_192
    batches: int = 4
    alpha: float = 1.05
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Ids, table after table, and the size of every bag."""

    values: np.ndarray  # int64 [N]
    lengths: np.ndarray  # int64 [T, B]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each table's ids begin; the last entry is N. [T + 1]"""
        return np.concatenate([[0], self.lengths.sum(1).cumsum()])

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each bag begins among its own table's ids; the last column is their number. [T, B + 1]"""
        return np.pad(self.lengths.cumsum(1), ((0, 0), (1, 0)))

    @cached_property
    def flat_offsets(self) -> np.ndarray:
        """Where each bag begins in `values`; the last entry is N. [T * B + 1]"""
        return np.concatenate([[0], self.lengths.ravel().cumsum()])

    def unique_rows(self) -> int:
        """Distinct rows touched, over all tables."""
        parts = np.split(self.values, self.starts[1:-1])
        return sum(len(np.unique(part)) for part in parts)


def load(shape: Shape, hot: int, cache: Path) -> list[Batch]:
    """The batches of a shape, from the cache or made now."""
    name = f"{shape.tables}x{shape.rows}-b{shape.batch}-hot{hot}-a{shape.alpha:g}-n{shape.batches}-s{shape.seed}"
    folder = cache / f"embedding-{name}-v{_EDITION}"
    if not folder.exists():
        _write(folder, make(shape, hot))
    return [
        Batch(np.load(folder / f"values-{i}.npy"), np.load(folder / f"lengths-{i}.npy")) for i in range(shape.batches)
    ]


def make(shape: Shape, hot: int) -> list[Batch]:
    """The batches of a shape; the same arguments give the same ids."""
    rng = np.random.default_rng([shape.seed, hot])
    orders = [rng.permutation(shape.rows) for _ in range(shape.tables)]
    return [_batch(rng, shape, hot, orders) for _ in range(shape.batches)]


def power_law(rng: np.random.Generator, distinct: int, alpha: float, n: int) -> np.ndarray:
    """`n` ranks in [0, distinct) with P(k) ~ (k + 1)^-alpha. [n] int64"""
    cumulative = np.cumsum(np.arange(1, distinct + 1, dtype=np.float64) ** -alpha)
    ranks = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.minimum(ranks, distinct - 1)


def _batch(rng: np.random.Generator, shape: Shape, hot: int, orders: list[np.ndarray]) -> Batch:
    size = (shape.tables, shape.batch)
    lengths = np.ones(size, np.int64) if hot == 1 else rng.integers(0, 2 * hot + 1, size)
    ids = [
        order[power_law(rng, shape.rows, shape.alpha, int(bags.sum()))]
        for order, bags in zip(orders, lengths, strict=True)
    ]
    return Batch(np.concatenate(ids), lengths)


def _write(folder: Path, batches: list[Batch]) -> None:
    part = folder.with_name(f"{folder.name}.part{os.getpid()}")
    part.mkdir(parents=True)
    try:
        for i, batch in enumerate(batches):
            np.save(part / f"values-{i}.npy", batch.values)
            np.save(part / f"lengths-{i}.npy", batch.lengths)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
