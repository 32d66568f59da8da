"""The click file that `train_cpu.py` trains on, and what a process of it is asked to do.

26 int64 id columns, each a power law of exponent 1.05 over 100,000 ids that are 0 … 99,999 already, in a shuffled
order; 13 float32 columns; an int8 label. Clicks follow a logistic model of both, so that there is something to learn.
Row groups of 131,072 rows, snappy, dictionary encoding on; written once and kept in a cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from workloads import DENSE, GROUP_ROWS, IDS, LABEL, power_law

ID_NAMES = tuple(f"id{i}" for i in range(IDS))
DENSE_NAMES = tuple(f"dense{i}" for i in range(DENSE))
DIM, HIDDEN, LR = 16, (64, 32), 0.05
_EDITION = 1  # part of the file name: raise it when the data change


@dataclass(frozen=True)
class Task:
    """What one process does: a kind of run, over which file, with which sizes."""

    kind: str
    path: str
    batch: int
    ids: int  # rows of each table
    threads: int
    folder: str  # for run directories and checkpoints
    steps: int = 100  # of a repetition, where a part repeats
    table_rows: int = 10_000_000  # of the one large table of checkpoints

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def say(answer: dict) -> None:
    """The answer of a process: a line that begins with @."""
    print("@" + json.dumps(answer), flush=True)


def write(rows: int, ids: int, cache: Path) -> Path:
    """The Parquet file, from the cache or written now."""
    path = cache / f"clicks-{rows}-of-{ids}-v{_EDITION}.parquet"
    return _write(path, rows, ids, range(0, rows, GROUP_ROWS))


def write_files(rows: int, ids: int, folder: Path, files: int) -> list[Path]:
    """The same rows in several files, each written by a process of its own."""
    starts = range(0, rows, GROUP_ROWS)
    files = min(files, len(starts))
    paths = [folder / f"clicks-{rows}-of-{ids}-{i + 1}-of-{files}-v{_EDITION}.parquet" for i in range(files)]
    parts = [starts[len(starts) * i // files : len(starts) * (i + 1) // files] for i in range(files)]
    with ProcessPoolExecutor(min(files, len(os.sched_getaffinity(0))), get_context("spawn")) as pool:
        return list(pool.map(_write, paths, [rows] * files, [ids] * files, parts))


def _write(path: Path, rows: int, ids: int, starts: range) -> Path:
    """The row groups that begin at `starts`, of a file of so many rows."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".part{os.getpid()}")
        try:
            with pq.ParquetWriter(part, _schema(), compression="snappy", use_dictionary=True) as writer:
                for table in _tables(rows, ids, starts):
                    writer.write_table(table, row_group_size=GROUP_ROWS)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _schema() -> pa.Schema:
    ids, dense = dict.fromkeys(ID_NAMES, pa.int64()), dict.fromkeys(DENSE_NAMES, pa.float32())
    return pa.schema({LABEL: pa.int8(), **ids, **dense})


def _tables(rows: int, ids: int, starts: range) -> Iterator[pa.Table]:
    rng = np.random.default_rng(0)
    orders = [rng.permutation(ids) for _ in ID_NAMES]
    effects = rng.normal(0, 0.25, (len(ID_NAMES), ids)).astype(np.float32)  # of each id on the logit of a click
    slopes = rng.normal(0, 0.1, len(DENSE_NAMES)).astype(np.float32)
    for start in starts:
        rng = np.random.default_rng([start, 1])
        n = min(GROUP_ROWS, rows - start)
        columns = [order[power_law(rng, ids, n)] for order in orders]
        dense = rng.standard_normal((len(DENSE_NAMES), n), dtype=np.float32)
        logits = sum(effect[column] for effect, column in zip(effects, columns, strict=True)) + slopes @ dense - 1.0
        clicks = rng.random(n) < 1 / (1 + np.exp(-logits))
        yield pa.Table.from_arrays(
            [pa.array(clicks.astype(np.int8)), *map(pa.array, columns), *map(pa.array, dense)], schema=_schema()
        )
