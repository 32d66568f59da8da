"""Record batches of any sizes -> record batches of the sizes asked for."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


class Rows:
    """A stream of record batches from which any number of rows can be taken next.

    >>> rows = Rows([pa.record_batch({"a": [1, 2, 3]}), pa.record_batch({"a": [4, 5]})])
    >>> [rows.take(2).num_rows for _ in range(3)], rows.take(2)
    ([2, 2, 1], None)
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch | None:
        """The next `rows` rows, fewer at the end of the stream, None behind it."""
        parts: list[pa.RecordBatch] = []
        while rows > 0:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                break
            self._rest = batch.slice(rows) if batch.num_rows > rows else None
            part = batch.slice(0, rows)
            rows -= part.num_rows
            if part.num_rows:
                parts.append(part)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
