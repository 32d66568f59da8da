"""Rows that come as an iterator of RecordBatches: no index, no count, read once per epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from hybridrec.data.join import Join
from hybridrec.data.loader import Effort
from hybridrec.data.partition import Span
from hybridrec.data.position import Position, Walk
from hybridrec.data.restore import Restore
from hybridrec.data.rows import CHUNK_BYTES, CHUNK_ROWS, Reading
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Shuffle, Window, mix, skip


class StreamSource:
    """The source behind a stream: each RecordBatch is a group of one chunk, held from its arrival until it is decoded."""

    files: tuple[str, ...] = ("stream",)
    bad: tuple[tuple[str, str], ...] = ()

    def __init__(self, make: Callable[[], Iterable[pa.RecordBatch]], schema: pa.Schema) -> None:
        self.make, self.schema = make, schema
        self.held: dict[int, pa.RecordBatch] = {}
        self.arrived = 0

    def __repr__(self) -> str:
        return f"stream({len(self.schema)} columns)"

    def arrive(self, batch: pa.RecordBatch) -> int:
        if not batch.schema.equals(self.schema):
            raise ValueError(f"a RecordBatch of the stream has the schema\n{batch.schema}\nbut the first one had\n{self.schema}")
        self.held[self.arrived] = batch
        self.arrived += 1
        return self.arrived - 1

    def describe(self, group: int) -> str:
        return f"chunk {group} of the stream"


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
        again = batches if callable(batches) else (lambda: _only_once(batches))
        return StreamRows(StreamSource(again, first.schema), (), [chain([first], begun)])

    @property
    def schema(self) -> pa.Schema:
        schema = self.source.schema
        for step in self.steps:
            schema = step.output(schema)
        return schema

    def with_step(self, step: Join | Restore) -> StreamRows:
        if isinstance(step, Restore):
            raise ValueError("restore() needs the row counts of files; apply hybridrec.data.Restore to the stream's batches")
        step.output(self.schema)
        return StreamRows(self.source, (*self.steps, step), self._first)

    def where(self, where: Any) -> StreamRows:
        raise ValueError("where() cannot count the rows of a stream; filter its batches before they come here")

    def split(self, at: Any, by: str | None, seed: int | None) -> tuple[StreamRows, StreamRows]:
        raise ValueError("split() cannot count the rows of a stream; make two streams")

    def count(self) -> int:
        raise TypeError("a stream has no length")

    def fingerprint(self) -> str:
        return f"stream of {', '.join(self.source.schema.names)}"

    def lines(self) -> list[str]:
        return [f"join(on={step.on!r})" for step in self.steps if isinstance(step, Join)]

    def reading(self, schema: Schema, effort: Effort, batch_size: int, chunk_rows: int | None = None) -> Reading:
        fixed = sum(8 if not pa.types.is_nested(kind) else 160 for kind in self.schema.types)  # until measured
        fit = max(CHUNK_ROWS[0], min(CHUNK_ROWS[1], CHUNK_BYTES // fixed))
        rows = chunk_rows or 1 << fit.bit_length() - 1
        source = self.source
        return Reading(
            columns=source.schema.names,
            chunk_rows=rows,
            row_bytes=float(fixed),
            borders=lambda group: np.array([0, rows]),
            open=lambda group: iter([source.held.pop(group)]),
            absent=lambda group: frozenset(),
            decode_bytes=effort.memory // 2,
        )

    def walk(
        self, reading: Reading, shuffle: Shuffle | None, position: Position, rank: int
    ) -> tuple[Walk, Iterator[tuple[Window, int]]]:
        """Windows as the batches arrive; what an earlier run delivered is read and dropped."""
        if not all(era.whole for era in position.eras):
            raise ValueError('the rows of a stream cannot be counted out to ranks; use shard(..., by="batch")')
        if shuffle is not None and shuffle.rows is None:
            raise ValueError('shuffle(rows="all") of a stream would read it to its end; state the rows of a window')
        done = sum(era.steps * era.batch_size for era in position.eras)
        return Walk([], 0, 0, done, -1), self._skipped(self._windows(reading, shuffle, position.epoch), done)

    def _skipped(self, order: Iterator[Window], done: int) -> Iterator[tuple[Window, int]]:
        for window in order:
            if done >= window.rows:
                done -= window.rows
                for span in window.spans:
                    self.source.held.pop(span.group)
            else:
                yield from skip([window], done)
                done = 0

    def _windows(self, reading: Reading, shuffle: Shuffle | None, epoch: int) -> Iterator[Window]:
        held: list[Span] = []
        rows = number = 0
        begun = self._first.pop() if self._first else iter(self.source.make())
        for batch in begun:
            for start in range(0, batch.num_rows, reading.chunk_rows):
                part = batch.slice(start, reading.chunk_rows)
                span = Span(self.source.arrive(part), 0, part.num_rows)
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


def _only_once(batches: Any) -> Iterable[pa.RecordBatch]:
    if iter(batches) is batches:
        raise ValueError("the iterator was used up by the first epoch; pass a function that makes a new one")
    return batches
