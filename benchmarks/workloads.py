"""The files that `data.py` reads: click logs with power-law ids, written once and kept in a cache folder.

Every file has row groups of 131,072 rows, snappy, dictionary encoding on. A feature's ids follow a power law
(exponent 1.05) over its own number of distinct values; the numbers run geometrically from 10 to a million.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS = 131_072
LABEL = "click"
ALPHA = 1.05
IDS, DENSE, LISTS, LONGEST = 26, 13, 8, 40  # list lengths are uniform over 0..LONGEST, so 20 ids on average
WORKLOADS = ("scalar", "ragged", "string")
_EDITION = 1  # part of the file name: raise it when the data change


def write(workload: str, rows: int, cache: Path) -> Path:
    """The Parquet file of a workload, from the cache or written now."""
    path = cache / f"{workload}-{rows}-v{_EDITION}.parquet"
    if not path.exists():
        _write_atomically(path, _tables(workload, rows))
    return path


def write_bytes(size: int, cache: Path, distinct: int = 8) -> Path:
    """A ragged file of at least `size` bytes; a few row groups are repeated, so it is quick to write."""
    path = cache / f"ragged-{size}-bytes-v{_EDITION}.parquet"
    if not path.exists():
        _write_atomically(path, cycle(_tables("ragged", GROUP_ROWS * distinct)), size)
    return path


def id_columns(path: Path) -> list[str]:
    """The columns a loader turns into ids: everything but the label and the floats."""
    schema = pq.read_schema(path)
    return [field.name for field in schema if field.name != LABEL and not pa.types.is_floating(field.type)]


def power_law(rng: np.random.Generator, distinct: int, n: int) -> np.ndarray:
    """`n` ids in [0, distinct) with P(k) ~ (k + 1)^-ALPHA, by inverting its integral. [n] int64"""
    tail = (distinct + 1.0) ** (1.0 - ALPHA)
    draws = (1.0 + rng.random(n) * (tail - 1.0)) ** (1.0 / (1.0 - ALPHA))
    return np.minimum(draws.astype(np.int64) - 1, distinct - 1)


def _tables(workload: str, rows: int) -> Iterator[pa.Table]:
    if workload not in WORKLOADS:
        raise ValueError(f"unknown workload {workload!r}: choose one of {', '.join(WORKLOADS)}")
    for start in range(0, rows, GROUP_ROWS):
        rng = np.random.default_rng([start, WORKLOADS.index(workload)])
        yield _group(workload, min(GROUP_ROWS, rows - start), rng)


def _group(workload: str, rows: int, rng: np.random.Generator) -> pa.Table:
    columns: dict[str, pa.Array] = {LABEL: pa.array((rng.random(rows) < 0.25).astype(np.int8))}
    for i, distinct in enumerate(_cardinalities(IDS)):
        ids = power_law(rng, distinct, rows)
        columns[f"id{i}"] = _hex_strings(ids) if workload == "string" else pa.array(ids)
    if workload != "string":
        for i in range(DENSE):
            columns[f"dense{i}"] = pa.array(rng.standard_normal(rows, dtype=np.float32))
    if workload == "ragged":
        for i, distinct in enumerate(_cardinalities(LISTS)):
            offsets = np.zeros(rows + 1, np.int32)
            np.cumsum(rng.integers(0, LONGEST + 1, rows), out=offsets[1:])
            values = pa.array(power_law(rng, distinct, int(offsets[-1])))
            columns[f"list{i}"] = pa.ListArray.from_arrays(pa.array(offsets), values)
    return pa.table(columns)


def _cardinalities(n: int) -> list[int]:
    return [round(float(c)) for c in np.geomspace(10, 1_000_000, n)]


def _hex_strings(ids: np.ndarray) -> pa.Array:
    """Eight hexadecimal digits per id, as in Criteo's logs."""
    distinct, index = np.unique(ids, return_inverse=True)
    words = [f"{(int(i) + 1) * 2654435761 % 2**32:08x}" for i in distinct]  # Knuth's multiplier is a bijection
    return pa.array(words).take(pa.array(index))


def _write_atomically(path: Path, tables: Iterator[pa.Table], size: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    first = next(tables)
    try:
        with pq.ParquetWriter(part, first.schema, compression="snappy", use_dictionary=True) as writer:
            writer.write_table(first, row_group_size=GROUP_ROWS)
            while size is None or part.stat().st_size < size:
                table = next(tables, None)
                if table is None:
                    break
                writer.write_table(table, row_group_size=GROUP_ROWS)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
