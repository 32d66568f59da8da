"""Which rows a dataset holds, and how its row groups are read: filters, splits, joins, restores."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybridrec.data.arrow_types import is_list
from hybridrec.data.effort import Effort
from hybridrec.data.join import Join
from hybridrec.data.partition import Span, batch_count, count, share, slice_of_batch, take
from hybridrec.data.position import Position, Walk, walk
from hybridrec.data.reading import Reading
from hybridrec.data.restore import Restore
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Shuffle, Window, mix, skip, windows
from hybridrec.data.source import BadFile, Source
from hybridrec.data.where import as_expression
from hybridrec.remedy import SCHEMA_FILE, no_column, remedied

CHUNK_BYTES = 40 << 20  # large enough that per-chunk costs vanish, small enough that many fit the usual ceiling
CHUNK_ROWS = (256, 131072)
SAMPLE_ROWS = 1024
PAGE_BYTES = 5 << 18  # a page of a Parquet column holds about 1 MiB; some more for the buffer it is read through


@dataclass(frozen=True)
class Where:
    """The rows for which an expression holds; only `possible` groups can have some."""

    expression: pc.Expression
    possible: frozenset[int]

    def __str__(self) -> str:
        return f"where({self.expression})"

    def apply(self, rows: RowSet, spans: list[Span]) -> list[Span]:
        spans = [span for span in spans if span.group in self.possible and span.rows]
        with ThreadPoolExecutor(8, thread_name_prefix="hybridrec-where") as pool:
            kept = list(pool.map(lambda span: self._kept(rows.source, span), spans))
        for span, result in zip(spans, kept, strict=True):
            if isinstance(result, BadFile):
                rows.lose(result, span.rows)
        return [span for span in kept if isinstance(span, Span) and span.rows]

    def _kept(self, source: Source, span: Span) -> Span | BadFile:
        try:
            mask = source.mask(span.group, self.expression)[span.start : span.stop]
        except BadFile as bad:
            return bad
        return Span.of_mask(span.group, mask & span.mask(span.start, span.stop), span.start)


@dataclass(frozen=True)
class Part:
    """One side of a cut: a fraction of the rows in file order, or drawn at random; `second` is the rest."""

    fraction: float
    seed: int | None
    second: bool

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"split({self.fraction}{seed}, part={int(self.second)})"

    def apply(self, rows: RowSet, spans: list[Span]) -> list[Span]:
        if self.seed is not None:
            return _drawn(spans, self.fraction, self.seed, not self.second)
        border = round(count(spans) * self.fraction)
        return take(spans, border) if self.second else take(spans, 0, border)


@dataclass(frozen=True)
class WorkerShare:
    """The rows of one DataLoader worker: whole batches of its rank, so that all workers cut as many as one process."""

    rank: int
    world: int
    batch_size: int
    worker: int
    workers: int

    def __str__(self) -> str:
        return f"worker({self.worker} of {self.workers})"

    def apply(self, rows: RowSet, spans: list[Span]) -> list[Span]:
        mine = share(spans, self.rank, self.world)
        first, last = slice_of_batch(batch_count(count(mine), self.batch_size), self.worker, self.workers)
        return take(mine, first * self.batch_size, last * self.batch_size)


@dataclass(frozen=True)
class _Sizes:
    row_bytes: float  # decoded, after joins and restores
    rows_per_stored: float  # 1, or the rows of a deduplicated block


@dataclass(frozen=True)
class RowSet:
    """Rows of a source: all, or what selections leave, with columns joined or blocks restored."""

    source: Source
    skip_bad: bool = False
    selections: tuple[Where | Part | WorkerShare, ...] = ()
    steps: tuple[Join | Restore, ...] = ()
    _lost: dict[tuple[str, int | None], int] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    _measured: dict[tuple[str, ...], _Sizes] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    # -- choosing --------------------------------------------------------------------------------------------

    def where(self, where: Any) -> RowSet:
        if self._restore is not None:
            raise ValueError("where() on deduplicated blocks cannot see rows; filter when the blocks are written")
        expression = as_expression(where)
        return self._select(Where(expression, frozenset(self.source.prune(expression))))

    def split(self, at: Any, by: str | None, seed: int | None) -> tuple[RowSet, RowSet]:
        if by is not None:
            return self._split_by(by, at)
        if not isinstance(at, float | int) or not 0 < at < 1:
            raise ValueError(f"split({at!r}): a fraction between 0 and 1, or a value of the column named by by=")
        return self._select(Part(at, seed, False)), self._select(Part(at, seed, True))

    def _split_by(self, column: str, at: Any) -> tuple[RowSet, RowSet]:
        if column not in self.source.schema.names:
            raise ValueError(no_column(column, self.source.schema.names))
        kind, field = self.source.schema.field(column).type, pc.field(column)
        try:
            value = _scalar(at, kind)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise ValueError(f"split by {column!r}: {at!r} is no value of its type {kind} ({error})") from None
        if nulls := count(self.where(field.is_null(nan_is_null=True)).spans):
            raise ValueError(
                f"split by {column!r}: {nulls} rows have a null or NaN there and belong to neither side; filter them"
            )
        return self.where(field < value), self.where(field >= value)

    def for_worker(self, part: WorkerShare) -> RowSet:
        return self._select(part)

    def with_step(self, step: Join | Restore) -> RowSet:
        if isinstance(step, Restore) and (self.selections or self.steps):
            raise ValueError("restore() comes before where(), split() and join()")
        step.output(self.schema)  # fails on columns that are missing or that clash
        return RowSet(self.source, self.skip_bad, self.selections, (*self.steps, step), self._lost)

    def _select(self, selection: Where | Part | WorkerShare) -> RowSet:
        return RowSet(self.source, self.skip_bad, (*self.selections, selection), self.steps, self._lost)

    def lose(self, bad: BadFile, rows: int) -> None:
        """Leave out the rows of a group that cannot be read, and count them, where that is the policy."""
        if not self.skip_bad:
            raise bad
        self._lost[bad.file, bad.row_group] = rows

    @property
    def lost(self) -> dict[str, int]:
        """Rows left out, by file: unknown (0) where the file could not be opened."""
        lost = {name: 0 for name, _ in self.source.bad}
        for (file, _), rows in self._lost.items():
            lost[file] = lost.get(file, 0) + rows
        return lost

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def restores(self) -> bool:
        """Whether its rows are made of deduplicated blocks."""
        return self._restore is not None

    @property
    def _restore(self) -> Restore | None:
        return next((step for step in self.steps if isinstance(step, Restore)), None)

    @property
    def schema(self) -> pa.Schema:
        """The columns after joins and restores."""
        return schema_after(self.steps, self.source.schema)

    @cached_property
    def spans(self) -> list[Span]:
        """The rows, group by group; filters are counted here, once."""
        if self._restore is None:
            spans = [Span(i, 0, group.rows) for i, group in enumerate(self.source.groups)]
        else:
            spans = [Span(i, 0, int(ends[-1])) for i, ends in enumerate(self._block_ends)]
        for selection in self.selections:
            spans = selection.apply(self, spans)
        return spans

    @cached_property
    def _block_ends(self) -> list[np.ndarray]:
        """Of each group of deduplicated blocks, where each block's rows end, after a leading 0."""
        assert self._restore is not None
        column = self._restore.groups[0][0]

        def ends(group: int) -> np.ndarray | BadFile:
            try:
                counts = [Restore.rows(chunk.column(0)) for chunk in self.source.open(group, [column], 65536)]
            except BadFile as bad:
                return bad
            return np.concatenate([[0], np.cumsum(np.concatenate(counts))])

        with ThreadPoolExecutor(8, thread_name_prefix="hybridrec-count") as pool:
            counted = list(pool.map(ends, range(len(self.source.groups))))
        for i, result in enumerate(counted):
            if isinstance(result, BadFile):
                self.lose(result, 0)  # how many rows its blocks made is unknown
                counted[i] = np.zeros(self.source.groups[i].rows + 1, np.int64)
        return [result for result in counted if not isinstance(result, BadFile)]

    def count(self) -> int:
        return count(self.spans)

    def fingerprint(self) -> str:
        """A hash over the files' layout and the rows selected: equal where the rows and their order are."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.source.fingerprint}\n{self._restore}\n".encode())
        for span in self.spans if self.selections else ():
            digest.update(f"{span.group} {span.start} {span.stop}\n".encode() + (span.keep or b""))
        return digest.hexdigest()[:32]

    def lines(self) -> list[str]:
        names = [f"join(on={s.on!r})" if isinstance(s, Join) else f"restore({dict(s.groups)})" for s in self.steps]
        return [str(selection) for selection in self.selections] + names

    # -- how it is read --------------------------------------------------------------------------------------

    def reading(self, schema: Schema, effort: Effort, chunk_rows: int | None = None) -> Reading:
        wanted = _columns(schema)
        columns = self._stored(wanted)
        missing = absent_columns(schema, self.schema)
        columns = [name for name in columns if name not in missing]
        sizes = self._sizes(tuple(columns))
        row_bytes = sizes.row_bytes
        if chunk_rows is None:
            fit = int(CHUNK_BYTES / row_bytes / sizes.rows_per_stored)
            least = CHUNK_ROWS[0] if self._restore is None else 1
            chunk_rows = min(max(1 << max(fit, 1).bit_length() - 1, least), CHUNK_ROWS[1])
        largest = int(max((group.rows for group in self.source.groups), default=0) * sizes.rows_per_stored)
        # groups too large to hold one per thread are decoded one at a time, all threads on its columns
        by_columns = effort.threads > 1 and largest * row_bytes * effort.threads > effort.memory
        self._check_absent(schema, columns)
        files = range(len(self.source.files))
        absent = [frozenset(self.source.absent(file) & set(columns) | missing) for file in files]
        rows = chunk_rows

        def borders(group: int) -> np.ndarray:
            stored = self.source.groups[group].rows
            ends = np.append(np.arange(0, stored, rows), stored)
            return ends if self._restore is None else self._block_ends[group][ends]

        return Reading(
            columns,
            rows,
            row_bytes,
            borders,
            lambda group, spread: self.source.open(group, columns, rows, by_columns or spread),
            lambda group: absent[self.source.groups[group].file],
            largest,
            min(max((group.bytes for group in self.source.groups), default=0), len(columns) * PAGE_BYTES),
        )

    def _sizes(self, columns: tuple[str, ...]) -> _Sizes:
        """Measured on the first rows that can be read: a function of the data alone."""
        if columns not in self._measured:
            self._measured[columns] = self._measure(list(columns))
        return self._measured[columns]

    def _measure(self, columns: list[str]) -> _Sizes:
        for number in range(min(8, len(self.source.groups))):
            try:
                stored = rows = next(self.source.open(number, columns, SAMPLE_ROWS))
                for step in self.steps:
                    rows = step(rows)
            except ValueError:  # a bad file is reported when its rows are due
                continue
            if rows.num_rows:
                size = sum(_decoded_bytes(column) for column in rows.columns)
                return _Sizes(max(1.0, size / rows.num_rows), rows.num_rows / stored.num_rows)
        return _Sizes(8.0 * max(1, len(columns)), 1.0)

    def _stored(self, wanted: list[str]) -> list[str]:
        """The columns of the files behind these columns of the rows."""
        columns = wanted
        for step in reversed(self.steps):
            if isinstance(step, Join):
                columns = [name for name in columns if name not in step.columns]
                columns += [step.on] if step.on not in columns else []
            else:
                columns = list(step.needs(columns))
        return columns

    def _check_absent(self, schema: Schema, columns: list[str]) -> None:
        for file in sorted({group.file for group in self.source.groups}):  # a file without rows lacks nothing
            name = self.source.files[file]
            for column in sorted(self.source.absent(file) & set(columns)):
                if column not in schema or schema[column].default is None:
                    raise remedied(
                        ValueError,
                        f"{name} has no column {column!r}, other files do",
                        call=f"declare what stands in for it: schema.edit({column!r}, default=...), or leave it out "
                        "with select()",
                        setting=f"name the columns to read, data.columns=[...], or give it a default {SCHEMA_FILE}",
                    )

    def walk(
        self, reading: Reading, shuffle: Shuffle | None, position: Position, rank: int
    ) -> tuple[Walk, Iterator[tuple[Window, int]]]:
        """Where a rank stands, and the windows from there on."""
        here = walk(self.spans, reading.borders, shuffle, position, rank)
        order = windows(here.spans, reading.borders, shuffle, position.epoch, here.rank, here.era)
        return here, skip(order, here.skip)


def schema_after(steps: Sequence[Join | Restore], schema: pa.Schema) -> pa.Schema:
    """The columns that joins and restores leave."""
    for step in steps:
        schema = step.output(schema)
    return schema


def last_rows(spans: Sequence[Span]) -> Callable[[int], int]:
    """Of each group, the row after the last that is needed."""
    last: dict[int, int] = {}
    for span in spans:
        last[span.group] = max(last.get(span.group, 0), span.stop)
    return lambda group: last.get(group, 0)  # a stream plans no rows ahead: its groups end with their chunk


def absent_columns(schema: Schema, arrow: pa.Schema) -> frozenset[str]:
    """Columns that the data lacks altogether; the schema must declare what stands in for them."""
    missing = frozenset(_columns(schema)) - set(arrow.names)
    for name in sorted(missing):
        if name not in schema or schema[name].default is None:
            raise remedied(
                ValueError,
                no_column(name, arrow.names),
                call="a column that is nowhere needs a default=",
                setting="add it, or give files that have the columns of training",
            )
    return missing


def _columns(schema: Schema) -> list[str]:
    """What the features are made of, each once, in the order of the schema."""
    used: dict[str, None] = {}
    for feature in schema:
        if feature.kind == "skip":
            continue
        names = [feature.name] if feature.cross is None else [feature.cross.left, feature.cross.right]
        used.update(dict.fromkeys([*names, *([feature.weights] if feature.weights else [])]))
    return list(used)


def _decoded_bytes(column: pa.Array) -> int:
    """What the column takes once decoded; of a dictionary-encoded one, the codes and the ids made of them."""
    if is_list(column.type):
        return _decoded_bytes(column.flatten()) + 8 * len(column)
    return 12 * len(column) if pa.types.is_dictionary(column.type) else column.nbytes


def _drawn(spans: list[Span], fraction: float, seed: int, inside: bool) -> list[Span]:
    """Single rows by a hash of (seed, group, row): the two sides share nothing, whatever else changes."""
    made = []
    for span in spans:
        rows = np.arange(span.start, span.stop, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = rows + np.uint64(mix(seed, span.group))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        chosen = (z ^ (z >> np.uint64(31))) < np.uint64(min(int(fraction * 2**64), 2**64 - 1))
        made.append(Span.of_mask(span.group, (chosen == inside) & span.mask(span.start, span.stop), span.start))
    return [span for span in made if span.rows]


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A Python value as one of this type: directly, or by a cast (a text as a time, a number as another)."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError):
        return pa.scalar(value).cast(kind)
