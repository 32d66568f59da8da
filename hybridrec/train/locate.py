"""Where wrong values stand: a batch is mixed from many places, and people look for the row of the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybridrec.data.dataset import Dataset
from hybridrec.data.place import labels_in_order, place_of
from hybridrec.train.losses import BadLabel


@contextmanager
def located(data: Any) -> Iterator[None]:
    """Within it, an error about a label names the first such row of the data, where that can be found.

    >>> import hybridrec as hr
    >>> from hybridrec.train.losses import LOSSES
    >>> ds = hr.data.table({"user": [1, 2, 3], "click": [0, 1, 7]}, label="click", batch_size=3).shuffle()
    >>> with located(ds):
    ...     LOSSES["bce"].check_labels(next(iter(ds)))
    Traceback (most recent call last):
    hybridrec.train.losses.BadLabel: label 'click' is 7 in row 2, but loss 'bce' takes 0 to 1; ...
    """
    try:
        yield
    except BadLabel as error:
        if error.place is not None or not isinstance(data, Dataset):
            raise
        raise _found(data, error) from error


def _found(data: Dataset, error: BadLabel) -> BadLabel:
    """The error of the first row with such a label, read again without the other columns."""
    for begins, batch in labels_in_order(data):
        try:
            error.loss.check_labels(batch)
        except BadLabel as first:
            return BadLabel(first.loss, first.name, first.value, first.row, place_of(data, begins + first.row))
    return error
