"""CSV, TSV and Criteo's format -> record batches.

Arrow splits the text into fields; the fields become values here, column by column, so that a bad value is
found with its row. Line numbers are counted only when one has to be reported, by a second look at the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from hybridrec.data.convert.problems import Problems, shown
from hybridrec.data.convert.values import Parser, hexadecimal, infer, integer_as_float, parser_of

BLOCK = 4 << 20
Reopen = Callable[[], BinaryIO]


@dataclass(frozen=True)
class Layout:
    """How the lines of a format are built; `names` None means that the first line names the columns."""

    delimiter: str
    quote: str | None
    names: tuple[str, ...] | None = None
    parsers: dict[str, Parser] = field(default_factory=dict)


def csv_layout() -> Layout:
    return Layout(",", '"')


def tsv_layout() -> Layout:
    return Layout("\t", None)


def criteo_layout() -> Layout:
    """label, I1 .. I13 (whole numbers, as float64: dense), C1 .. C26 (hexadecimal, as int64: ids)."""
    dense, ids = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
    parsers = {"label": parser_of(pa.int8())}
    parsers |= dict.fromkeys(dense, integer_as_float()) | dict.fromkeys(ids, hexadecimal())
    return Layout("\t", None, ("label", *dense, *ids), parsers)


class DelimitedReader:
    """Reads files of one layout; names and types are fixed by the first file, and the others must agree."""

    def __init__(self, layout: Layout, types: dict[str, pa.DataType], list_separator: str = "|") -> None:
        self.layout = layout
        self.types = types
        self.list_separator = list_separator
        self.schema: pa.Schema | None = None

    def read(self, name: str, reopen: Reopen, stream: BinaryIO, problems: Problems) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file; blank lines are no rows, an empty field is null."""
        names, header_lines = self._header(name, reopen)
        self._fix_names(name, names)
        text = _Fields(name, reopen, self.layout, header_lines, problems)
        for batch in text.batches(names, stream):
            if self.schema is None:
                self._fix_types(batch)
            yield self._parse(batch, text)
        text.check_end()

    def finish(self) -> pa.Schema:
        """The schema, also when no row decided it."""
        if self.schema is None:
            self._fix_types(pa.record_batch([pa.array([], pa.binary())] * len(self._names), names=list(self._names)))
        assert self.schema is not None
        return self.schema

    def _header(self, name: str, reopen: Reopen) -> tuple[list[str], int]:
        """Column names, and how many lines they take."""
        if self.layout.names is not None:
            return list(self.layout.names), 0
        quoting = csv.QUOTE_MINIMAL if self.layout.quote else csv.QUOTE_NONE
        with reopen() as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
            rows = csv.reader(text, delimiter=self.layout.delimiter, quoting=quoting)
            try:
                names = next((row for row in rows if row), None)
            except csv.Error as error:
                raise ValueError(f"{name}, line 1: no header can be read: {error}") from None
        if names is None:
            raise ValueError(f"{name} is empty; its first line must name the columns, or pass --columns a,b,c")
        if any("\ufffd" in column or "\0" in column for column in names):
            raise ValueError(f"{name}, line 1: the header is not UTF-8 text; name a UTF-8 file")
        return names, rows.line_num

    def _fix_names(self, name: str, names: list[str]) -> None:
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice or "" in names:
            what = f"{twice[0]!r} twice" if twice and twice[0] else "a column without a name"
            raise ValueError(f"{name}, line 1: the header has {what}; name the columns with --columns a,b,c")
        if not hasattr(self, "_names"):
            self._names = tuple(names)
            unknown = [n for n in self.types if n not in names]
            if unknown:
                raise ValueError(f"types names {unknown[0]!r}, which is no column; there are {', '.join(names)}")
        elif self._names != tuple(names):
            raise ValueError(
                f"{name} has the columns {', '.join(names)}, the files before it {', '.join(self._names)}; "
                "convert them apart"
            )

    def _fix_types(self, batch: pa.RecordBatch) -> None:
        """Choose a parser per column: the user's type, the format's, else what the first block looks like."""
        self.parsers: list[Parser] = []
        for column in self._names:
            if column in self.types:
                self.parsers.append(parser_of(self.types[column], self.list_separator))
            else:
                self.parsers.append(self.layout.parsers.get(column) or infer(batch.column(column)))
        self.schema = pa.schema([pa.field(n, p.type) for n, p in zip(self._names, self.parsers, strict=True)])

    def _parse(self, batch: pa.RecordBatch, text: _Fields) -> pa.RecordBatch:
        """Fields -> values; rows with a bad value are reported and left out."""
        columns, bad = [], {}
        for i, parser in enumerate(self.parsers):
            fields = batch.column(i)
            try:
                columns.append(parser(fields))
            except pa.ArrowInvalid:
                for row in parser.bad_rows(fields):
                    shown_value = shown(fields[row].as_py().decode(errors="backslashreplace"))
                    reason = f"{shown_value} in column {self._names[i]!r} is not {parser.what}"
                    bad.setdefault(row, reason)
        text.deliver(batch.num_rows, bad)
        if bad:
            good = np.ones(batch.num_rows, dtype=bool)
            good[list(bad)] = False
            kept = batch.filter(pa.array(good))
            columns = [parser(kept.column(i)) for i, parser in enumerate(self.parsers)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Fields:
    """One file as batches of string columns, with the row numbers that reports need."""

    def __init__(self, name: str, reopen: Reopen, layout: Layout, header_lines: int, problems: Problems) -> None:
        self.name, self.reopen, self.layout, self.header_lines = name, reopen, layout, header_lines
        self.problems = problems
        self.delivered = 0  # well-formed rows so far
        self.malformed: list[tuple[int, str]] = []  # (row number from 1, reason), not yet reported
        self.reported: list[int] = []  # row numbers of malformed rows
        self.open_end = False

    def batches(self, names: list[str], stream: BinaryIO) -> Iterator[pa.RecordBatch]:
        try:
            reader = pcsv.open_csv(
                stream,
                read_options=pcsv.ReadOptions(
                    column_names=names, skip_rows=self.header_lines, use_threads=False, block_size=BLOCK
                ),
                parse_options=pcsv.ParseOptions(
                    delimiter=self.layout.delimiter,
                    quote_char=self.layout.quote or False,
                    newlines_in_values=self.layout.quote is not None,
                    invalid_row_handler=self._malformed,
                ),
                convert_options=pcsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise ValueError(f"{self.name}: {error}") from None
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                raise ValueError(f"{self.name}: {error}") from None
            if batch.num_rows:
                self.open_end = self._breaks_in_last_row(batch)
                yield batch

    def deliver(self, rows: int, bad: dict[int, str]) -> None:
        """Report, in file order, the malformed rows met so far and the bad values of this batch."""
        found = [(self._number(row), reason) for row, reason in bad.items()]
        self._report(found + self.malformed)
        self.malformed = []
        self.delivered += rows

    def check_end(self) -> None:
        """Report what came behind the last batch, and a quote that was opened and never closed."""
        self.deliver(0, {})
        if self.open_end:
            opened = self._scan(None)
            if opened is not None:
                raise ValueError(f"{self.name}, line {opened}: a quote is opened and never closed")

    def _malformed(self, row: pcsv.InvalidRow) -> str:
        reason = f"{row.actual_columns} fields where {row.expected_columns} are due: {shown(row.text)}"
        number = row.number - self.header_lines
        self.malformed.append((number, reason))
        self.reported.append(number)
        return "skip"

    def _number(self, row: int) -> int:
        """The row's number in the file, from 1, malformed rows counted in."""
        number = self.delivered + row + 1
        for malformed in self.reported:
            if malformed > number:
                break
            number += 1
        return number

    def _report(self, found: list[tuple[int, str]]) -> None:
        for number, reason in sorted(found):
            self.problems.add(self.name, lambda number=number: self._scan(number) or 0, reason)

    def _breaks_in_last_row(self, batch: pa.RecordBatch) -> bool:
        if self.layout.quote is None:
            return False
        last = batch.slice(batch.num_rows - 1)
        return any(b"\n" in (column[0].as_py() or b"") for column in last.columns)

    def _scan(self, row: int | None) -> int | None:
        """The line where row `row` begins; for None, the line of a quote that is still open at the end."""
        quote = (self.layout.quote or "").encode()
        seen, inside, start = 0, False, 0
        with self.reopen() as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):  # type: ignore[type-var]  # a raw stream
                if number <= self.header_lines or (not inside and not line.strip(b"\r\n")):
                    continue
                if not inside:
                    seen, start = seen + 1, number
                    if seen == row:
                        return number
                if quote and line.count(quote) % 2:
                    inside = not inside
        return start if inside and row is None else None


def with_names(layout: Layout, names: tuple[str, ...] | None) -> Layout:
    """The layout with these column names, for files without a header."""
    return layout if names is None else replace(layout, names=names)
