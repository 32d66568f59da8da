"""Row groups that need no file: rows numbered through, group by group, in chunks of a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hybridrec.data.assembly import Decoding
from hybridrec.data.decode import Decoder
from hybridrec.data.partition import Span
from hybridrec.data.reading import Cuts, Plan, Reading
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Window
from hybridrec.data.source import Group

CHUNK, ROWS = 4, 12  # rows of a chunk, and of a group
BORDERS = np.arange(0, ROWS + 1, CHUNK)
ROW_BYTES = 8


@dataclass
class Groups:
    """A source, and the decoder of its only column; remembers how its groups were opened."""

    count: int = 3
    opened: list[tuple[int, bool]] = field(default_factory=list)
    files: tuple[str, ...] = ("a.parquet",)

    def __post_init__(self) -> None:
        self.groups = [Group(0, i, ROWS, ROWS * ROW_BYTES) for i in range(self.count)]
        self.decoder = Decoder(Schema.infer(pa.schema({"user": pa.int64()})))

    def describe(self, group: int) -> str:
        return f"a.parquet, row group {group}"

    def open(self, group: int, all_threads: bool) -> Iterator[pa.RecordBatch]:
        self.opened.append((group, all_threads))
        rows = np.arange(group * ROWS, (group + 1) * ROWS)
        return iter([pa.record_batch({"user": rows[start : start + CHUNK]}) for start in BORDERS[:-1]])

    def plan(self, cuts: Cuts, ahead_rows: int = 1000) -> Plan:
        reading = Reading(
            columns=["user"],
            chunk_rows=CHUNK,
            row_bytes=ROW_BYTES,
            borders=lambda group: BORDERS,
            open=self.open,
            absent=lambda group: frozenset(),
            group_rows=ROWS,
            lane_bytes=0,
        )
        return Plan(reading, lambda group: ROWS, cuts, ahead_rows)


def window(*chunks: tuple[int, int]) -> Window:
    """Chunks, as (group, number), read together in order."""
    return Window(tuple(Span(group, CHUNK * n, CHUNK * (n + 1)) for group, n in chunks), None)


def in_order(groups: int) -> list[Window]:
    """A window for each chunk."""
    return [window((group, n)) for group in range(groups) for n in range(ROWS // CHUNK)]


def begun(number: int, *chunks: tuple[int, int], done: int = 0) -> Decoding:
    return Decoding.begin(number, window(*chunks), done, lambda group: BORDERS)
