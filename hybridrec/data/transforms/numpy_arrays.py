"""Flat Arrow columns of numbers as NumPy values with a mask of their nulls, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_whole
from hybridrec.data.hashing import as_int64
from hybridrec.data.lists import null_mask


def to_numpy(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """A flat column of numbers as NumPy values (0 for null), and a mask of the nulls (None: none)."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    kind = array.type
    if pa.types.is_null(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_float16(kind):
        array = array.cast(pa.float32())
    elif pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not pa.types.is_integer(kind) and is_whole(kind):
        array = as_int64(array)
    nulls = null_mask(array)
    return (array if nulls is None else array.fill_null(0)).to_numpy(), nulls


def to_arrow(values: np.ndarray, nulls: np.ndarray | None, kind: pa.DataType | None = None) -> pa.Array:
    """Values as an Arrow column, null where the mask is set; `kind` if their own type is not meant."""
    if kind is not None and pa.types.is_null(kind):
        return pa.nulls(len(values))
    values = values if kind is None else values.astype(kind.to_pandas_dtype(), copy=False)
    return pa.array(values, mask=nulls, from_pandas=False)
