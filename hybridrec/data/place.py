"""Rows as messages name them: by the file they come from, and the row of that file."""

from __future__ import annotations

from collections.abc import Iterator

from hybridrec.data.dataset import Dataset, Shard
from hybridrec.data.rows import RowSet
from hybridrec.data.schema import Schema
from hybridrec.types import Batch


def place_of(dataset: Dataset, row: int) -> str:
    """The place of the row that comes at this position, in the order of the files; rows count from 0.

    >>> import hybridrec as hr
    >>> ds = hr.data.table({"user": [1, 2, 3], "click": [0, 1, 0]}, label="click", batch_size=2)
    >>> place_of(ds, 2)
    'row 2'
    """
    rows = dataset._rows
    if not isinstance(rows, RowSet) or rows.restores:
        return f"row {row}"
    for span in rows.spans:
        if row < span.rows:
            return _named(rows, span.group, span.row(row))
        row -= span.rows
    raise IndexError(f"the dataset has fewer than {row} rows")


def files_of(dataset: Dataset) -> list[str]:
    """The files that its rows come from; none where they are of a frame or a stream."""
    rows = dataset._rows
    return [] if not isinstance(rows, RowSet) else [name for name in rows.source.files if not name.startswith("<")]


def _named(rows: RowSet, group: int, row: int) -> str:
    groups = rows.source.groups
    here = groups[group]
    row += sum(each.rows for each in groups[:group] if each.file == here.file)
    name = rows.source.files[here.file]
    return f"row {row}" if name.startswith("<") else f"{name}, row {row}"


def labels_in_order(dataset: Dataset) -> Iterator[tuple[int, Batch]]:
    """Batches of labels alone in the order of the files, each with the position of its first row."""
    schema = Schema(dataset.schema.of("label"))
    plain = dataset._with(_schema=schema, _shuffle=None, _shard=Shard())
    begins = 0
    for batch in plain:
        yield begins, batch
        begins += len(batch)


def nan_score(batch: Batch, row: int, place: str) -> ValueError:
    """The error of a score that is NaN: which dense column is to blame, where one is."""
    if not batch.dense.shape[1] or bool(batch.dense[row].isfinite().all()):
        return ValueError(f"the score of {place} is not a number, though its dense columns are; look at the weights")
    column = int((~batch.dense[row].isfinite()).nonzero()[0, 0])
    name = batch.dense_names[column] if batch.dense_names else str(column)
    return ValueError(
        f"column {name!r} is {float(batch.dense[row, column]):g} in {place}, so its score is not a number; fill it, or "
        "make it null: a null of a dense column is read as its default"
    )
