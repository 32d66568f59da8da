"""libsvm text (`label [qid:q] index:value ...`, `#` comments) -> record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute

from hybridrec.data.convert.problems import Problems, shown

pc: Any = pyarrow.compute  # its functions are made at import, unseen by pyright
CHUNK = 4 << 20
_LABEL = pa.field("label", pa.float32())
_QID = pa.field("qid", pa.int64())
_FEATURES = [pa.field("indices", pa.list_(pa.int64())), pa.field("values", pa.list_(pa.float32()))]


class LibsvmReader:
    """Reads one format; `schema` is fixed by the first data line (with or without qid) of the first file."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None

    def read(self, name: str, reopen: object, stream: BinaryIO, problems: Problems) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file; blank lines and comments are no rows."""
        before = 0
        for block in _whole_lines(stream):
            lines = _lines(block if block.isascii() else block.decode(errors="replace").encode())
            numbers = before + 1 + np.arange(len(lines))
            before += len(lines)
            if b"#" in block:
                lines = pc.replace_substring_regex(lines, "#.*", "")
            lines = pc.ascii_trim_whitespace(lines)
            filled = pc.not_equal(lines, "")
            lines, numbers = lines.filter(filled), numbers[filled.to_numpy(zero_copy_only=False)]
            if len(lines):
                yield self._parse(name, lines, numbers, problems)

    def finish(self) -> pa.Schema:
        """The schema, also when no line decided it."""
        return self.schema or pa.schema([_LABEL, *_FEATURES])

    def _parse(self, name: str, lines: pa.Array, numbers: np.ndarray, problems: Problems) -> pa.RecordBatch:
        try:
            return self._parse_all(lines)
        except ValueError:
            good = np.ones(len(lines), dtype=bool)
            for i, line in enumerate(lines.to_pylist()):
                reason = self._fault(line)
                if reason is not None:
                    good[i] = False
                    problems.add(name, lambda i=i: int(numbers[i]), reason)
            return self._parse_all(lines.filter(pa.array(good)))

    def _parse_all(self, lines: pa.Array) -> pa.RecordBatch:
        """Every line by whole-column operations; ValueError if any is malformed."""
        tokens = pc.ascii_split_whitespace(lines)
        starts = tokens.offsets.to_numpy()
        flat = tokens.values
        is_qid = pc.starts_with(flat, "qid:").to_numpy(zero_copy_only=False)
        if self.schema is None and len(lines):
            first_has_qid = bool(is_qid[1:2].any()) and starts[1] > 1
            self.schema = pa.schema([_LABEL, *([_QID] if first_has_qid else []), *_FEATURES])
        is_label = np.zeros(len(flat), dtype=bool)
        is_label[starts[:-1]] = True
        second = np.zeros(len(flat) + 1, dtype=bool)
        second[starts[:-1] + 1] = True
        if (is_qid & ~(second[:-1] & ~is_label)).any():
            raise ValueError("a qid that is not the second token")
        columns: list[pa.Array] = [flat.filter(pa.array(is_label)).cast(pa.float32())]
        if "qid" in self.finish().names:
            columns.append(self._qids(flat, starts, is_qid))
        elif is_qid.any():
            raise ValueError("a qid in data without")
        is_feature = ~(is_label | is_qid)
        pairs = pc.split_pattern(flat.filter(pa.array(is_feature)), ":")
        if len(pairs) and (np.diff(pairs.offsets.to_numpy()) != 2).any():
            raise ValueError("a token that is no index:value")
        ends = np.concatenate([[0], np.cumsum(is_feature)])[starts].astype(np.int32)
        halves = pairs.values
        for kind, odd in ((pa.int64(), 0), (pa.float32(), 1)):
            part = halves.take(pa.array(np.arange(odd, len(halves), 2))).cast(kind)
            columns.append(pa.ListArray.from_arrays(pa.array(ends), part))
        return pa.RecordBatch.from_arrays(columns, schema=self.finish())

    def _qids(self, flat: pa.Array, starts: np.ndarray, is_qid: np.ndarray) -> pa.Array:
        """The qid of every line, null where it has none."""
        position = np.minimum(starts[:-1] + 1, len(flat) - 1)
        has = is_qid[position] & (np.diff(starts) > 1) if len(flat) else np.zeros(0, dtype=bool)
        digits = pc.utf8_slice_codeunits(flat.take(pa.array(position[has])), 4).cast(pa.int64())
        where = np.cumsum(has) - 1
        return digits.take(pa.array(where, mask=~has))

    def _fault(self, line: str) -> str | None:
        """What is wrong with one line, or None."""
        label, *rest = line.split()
        if not _is(float, label):
            return f"label {shown(label)} is not a number"
        if rest and rest[0].startswith("qid:"):
            if "qid" not in self.finish().names:
                return f"{shown(rest[0])} in a file whose first line has no qid"
            if not _is(int, rest[0][4:]):
                return f"{shown(rest[0])} is not a whole number"
            rest = rest[1:]
        for token in rest:
            index, colon, value = token.partition(":")
            if not colon or not _is(int, index) or not _is(float, value):
                return f"{shown(token)} is not index:value"
        return None


def _is(kind: type[int] | type[float], text: str) -> bool:
    """Whether Arrow reads the text as such a number (stricter than Python: no underscores, no plus sign)."""
    try:
        pa.array([text]).cast(pa.int64() if kind is int else pa.float32())
    except pa.ArrowInvalid:
        return False
    return True


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Blocks of about CHUNK bytes that end with a line break."""
    rest = b""
    while data := stream.read(CHUNK):
        data = rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest + b"\n"


def _lines(block: bytes) -> pa.Array:
    """One string per line, line break included; no copy of the text."""
    breaks = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10)
    offsets = np.zeros(len(breaks) + 1, dtype=np.int32)
    offsets[1:] = breaks + 1
    return pa.Array.from_buffers(pa.string(), len(breaks), [None, pa.py_buffer(offsets), pa.py_buffer(block)])
