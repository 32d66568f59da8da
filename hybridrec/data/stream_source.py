"""Rows that come as an iterator of RecordBatches: no index, no count, read once per epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from hybridrec.data.effort import Effort
from hybridrec.data.join import Join
from hybridrec.data.partition import Span
from hybridrec.data.position import Position, Walk
from hybridrec.data.reading import Reading
from hybridrec.data.restore import Restore
from hybridrec.data.rows import CHUNK_BYTES, CHUNK_ROWS, WorkerShare, absent_columns, schema_after
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Shuffle, Window, mix, skip
from hybridrec.data.source import Group, layout, leaf, record_batch


class StreamSource:
    """The source behind a stream: each RecordBatch is a group of one chunk, its structs flattened."""

    files: tuple[str, ...] = ("stream",)
    groups: tuple[Group, ...] = ()  # not known ahead

    def __init__(self, make: Callable[[], Iterable[pa.RecordBatch]], stored: pa.Schema) -> None:
        self.make, self._stored, self._layout = make, stored, layout(stored)
        self.schema = pa.schema(list(self._layout.types.items()))
        self.left_out = self._layout.left_out

    def __repr__(self) -> str:
        return f"stream(columns={len(self.schema)})"

    def flat(self, batch: Any) -> pa.RecordBatch:
        """The leaf columns of a RecordBatch, which must look like the first one."""
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"a stream gives pyarrow RecordBatches, not {type(batch).__name__}")
        if not batch.schema.equals(self._stored):
            raise ValueError(
                f"a RecordBatch of the stream has the schema\n{batch.schema}\n"
                f"but the first one had\n{self._stored}\n"
                "cast it before it comes here"
            )
        leaves = [leaf(batch, path) for path in self._layout.paths.values()]
        return record_batch(leaves, self.schema.names, batch.num_rows)

    def describe(self, group: int) -> str:
        return f"chunk {group} of the stream"


@dataclass(frozen=True)
class StreamReading(Reading):
    """How one epoch of a stream is read: chunks are held from their arrival until they are decoded."""

    held: dict[int, pa.RecordBatch]


@dataclass(frozen=True)
class StreamRows:
    """The rows of a stream, with the same face as `RowSet` where that is possible."""

    source: StreamSource
    steps: tuple[Join | Restore, ...] = ()
    _first: list[Iterator[pa.RecordBatch]] = field(default_factory=list)

    @staticmethod
    def over(batches: Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]]) -> StreamRows:
        """Look at the first RecordBatch for its schema; it is not lost."""
        begun = iter(batches() if callable(batches) else batches)
        first = next(begun, None)
        if first is None:
            raise ValueError("the stream is empty: without a RecordBatch its columns are unknown")
        if not isinstance(first, pa.RecordBatch):
            raise TypeError(f"a stream gives pyarrow RecordBatches, not {type(first).__name__}")
        again = batches if callable(batches) else (lambda: _only_once(batches))
        return StreamRows(StreamSource(again, first.schema), (), [chain([first], begun)])

    @property
    def schema(self) -> pa.Schema:
        return schema_after(self.steps, self.source.schema)

    def with_step(self, step: Join | Restore) -> StreamRows:
        if isinstance(step, Restore):
            raise ValueError(
                "restore() needs the row counts of files; apply hybridrec.data.Restore to the stream's batches"
            )
        step.output(self.schema)
        return StreamRows(self.source, (*self.steps, step), self._first)

    def where(self, where: Any) -> StreamRows:
        raise ValueError("where() cannot count the rows of a stream; filter its batches before they come here")

    def for_worker(self, part: WorkerShare) -> StreamRows:
        raise ValueError(
            "the rows of a stream cannot be counted out to DataLoader workers; "
            "iterate the dataset itself, it has threads of its own"
        )

    def split(self, at: Any, by: str | None, seed: int | None) -> tuple[StreamRows, StreamRows]:
        raise ValueError("split() cannot count the rows of a stream; make two streams")

    @property
    def lost(self) -> dict[str, int]:
        return {}

    def count(self) -> int:
        raise TypeError("a stream has no length")

    def fingerprint(self) -> str:
        return f"stream of {', '.join(self.source.schema.names)}"

    def lines(self) -> list[str]:
        return [f"join(on={step.on!r})" for step in self.steps if isinstance(step, Join)]

    def reading(self, schema: Schema, effort: Effort, chunk_rows: int | None = None) -> StreamReading:
        missing = absent_columns(schema, self.schema)
        fixed = sum(160 if pa.types.is_nested(kind) else 8 for kind in self.schema.types)  # until measured
        fit = max(CHUNK_ROWS[0], min(CHUNK_ROWS[1], CHUNK_BYTES // max(fixed, 1)))
        rows = chunk_rows or 1 << fit.bit_length() - 1
        held: dict[int, pa.RecordBatch] = {}
        return StreamReading(
            columns=self.source.schema.names,
            chunk_rows=rows,
            row_bytes=float(fixed),
            borders=lambda group: np.array([0, rows]),
            open=lambda group, spread: iter([held.pop(group)]),
            absent=lambda group: missing,
            group_rows=rows,
            lane_bytes=0,
            held=held,
        )

    def walk(
        self, reading: Reading, shuffle: Shuffle | None, position: Position, rank: int
    ) -> tuple[Walk, Iterator[tuple[Window, int]]]:
        """Windows as the batches arrive; what an earlier run delivered is read and dropped."""
        assert isinstance(reading, StreamReading)
        if not all(era.whole for era in position.eras):
            raise ValueError('the rows of a stream cannot be counted out to ranks; use shard(..., by="batch")')
        done = sum(era.steps * era.batch_size for era in position.eras)
        return Walk([], 0, 0, done, -1), _skipped(self._windows(reading, shuffle, position.epoch), done, reading.held)

    def _windows(self, reading: StreamReading, shuffle: Shuffle | None, epoch: int) -> Iterator[Window]:
        held: list[Span] = []
        rows = number = arrived = 0
        begun = self._first.pop() if self._first else iter(self.source.make())
        for batch in map(self.source.flat, begun):
            for start in range(0, batch.num_rows, reading.chunk_rows):
                part = batch.slice(start, reading.chunk_rows)
                span = Span(arrived, 0, part.num_rows)
                reading.held[arrived] = part
                arrived += 1
                if shuffle is None:
                    yield Window((span,), None)
                    continue
                held.append(span)
                rows += span.rows
                if rows >= (shuffle.rows or 1):
                    yield Window(tuple(held), mix(shuffle.seed, epoch, 0, 0, number))
                    held, rows, number = [], 0, number + 1
        if held and shuffle is not None:
            yield Window(tuple(held), mix(shuffle.seed, epoch, 0, 0, number))


def _skipped(order: Iterator[Window], done: int, held: dict[int, pa.RecordBatch]) -> Iterator[tuple[Window, int]]:
    """The windows after `done` rows; the chunks of those before are let go."""
    for window in order:
        if done >= window.rows:
            done -= window.rows
            for span in window.spans:
                held.pop(span.group)
        else:
            yield from skip([window], done)
            done = 0


def _only_once(batches: Any) -> Iterable[pa.RecordBatch]:
    if iter(batches) is batches:
        raise ValueError("the iterator was used up by the first epoch; pass a function that makes a new one")
    return batches
