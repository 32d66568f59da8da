"""Arrow lists taken apart into items and offsets, and put together again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_list


def unnest(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """A list array as its items, int64 offsets from 0 into them, and which rows are valid (None: all).

    Slices are honoured, and items hidden under null rows are left out, so no one computes on garbage.
    """
    nulls = null_mask(array)
    valid = None if nulls is None else ~nulls
    if not len(array):
        return array.values.slice(0, 0), np.zeros(1, np.int64), None
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
        return array.flatten(), offsets_of(lengths if valid is None else lengths * valid), valid
    offsets = array.offsets.to_numpy().astype(np.int64)
    if valid is not None and np.diff(offsets)[nulls].any():
        return array.flatten(), offsets_of(np.diff(offsets) * valid), valid
    return array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0], valid


def renest(kind: pa.DataType, items: pa.Array, offsets: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """The reverse of unnest, as a list of type `kind`."""
    rows = len(offsets) - 1
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_fixed_size_list(kind):
        if valid is not None:  # null rows need slots of their own
            slots = np.repeat(valid, kind.list_size)
            items = items.take(pa.array(np.cumsum(slots) - 1, mask=~slots))
        return pa.Array.from_buffers(kind, rows, [bits], children=[items])
    if pa.types.is_list(kind):
        if offsets[-1] > np.iinfo(np.int32).max:
            raise ValueError(f"{offsets[-1]} items do not fit in one {kind}; use smaller chunks or large_list")
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets)], children=[items])


def map_values(array: pa.Array, function: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Apply a function to the values inside all lists."""
    if not is_list(array.type):
        return function(array)
    child, offsets, valid = unnest(array)
    child = map_values(child, function)
    return renest(with_values(array.type, child.type), child, offsets, valid)


def with_values(kind: pa.DataType, values: pa.DataType) -> pa.DataType:
    """The same kind of list around other values."""
    inner = kind.value_field.with_type(values).with_nullable(True)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def ranges(starts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """starts[i], starts[i] + 1, ... for each i, as many as offsets[i] .. offsets[i + 1] spans."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Offsets from 0 of rows of these lengths, int64, one more than there are rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def null_mask(array: pa.Array) -> np.ndarray | None:
    """Which rows are null, None where none is."""
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
