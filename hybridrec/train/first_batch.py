"""A look at the first batch of some data, which stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridrec.data.dataset import Dataset


def comes_again(data: Any) -> bool:
    """Whether batches that were looked at are there for the next reader too; a stream or an iterator may lose them.

    >>> comes_again([1, 2]), comes_again(iter([1, 2]))
    (True, False)
    """
    return not data.streamed if isinstance(data, Dataset) else isinstance(data, Sequence)


def first_batch(data: Any, rows: int = 1) -> Any:
    """The first batch with rows of data that `comes_again`, with so many if a Dataset has them; None where none."""
    batches = iter(_joined(data, rows) if isinstance(data, Dataset) else data)
    try:
        return next((batch for batch in batches if len(batch)), None)
    finally:
        getattr(batches, "close", lambda: None)()


def _joined(data: Dataset, rows: int) -> Dataset:
    """The data in batches of so many rows at least, or of all its rows: under drop_last, more would be none."""
    return data.batch(max(data.batch_size, min(rows, len(data) * data.batch_size)))
