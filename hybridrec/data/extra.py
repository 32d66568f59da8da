"""Nulls in columns that travel as they are (`batch.extra`), at any depth of nesting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from hybridrec.data.arrow_types import is_list


def without_nulls(column: pa.Array, policy: str, default: Any) -> pa.Array:
    """The column with its nulls replaced: a null list is empty, a null element takes the default or is dropped.

    `policy` is "error", "empty" or "default". Under "empty" a null string is "", and a null number that is not inside
    a list has nothing to become: that is an error.

    >>> without_nulls(pa.array([[1, None], None]), "empty", None).to_pylist()
    [[1], []]
    """
    if pt.is_fixed_size_list(column.type) and (column.null_count or column.flatten().null_count):
        column = column.cast(pa.list_(column.type.value_type))
    if not is_list(column.type):
        return _filled(column, policy, default) if column.null_count else column
    if pt.is_fixed_size_list(column.type):
        return column
    if column.null_count and policy == "error":
        raise ValueError('a null list, and the policy of this column is null="error"; choose null="empty"')
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    values = pc.list_flatten(column)  # leaves out what lies under null lists
    if not is_list(values.type) and values.null_count and policy == "empty":
        owner = np.repeat(np.arange(len(lengths)), lengths)
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.bincount(owner[kept], minlength=len(lengths))
        values = values.drop_null()
    values = without_nulls(values, policy, default)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(offsets, values)


def _filled(column: pa.Array, policy: str, default: Any) -> pa.Array:
    kind = column.type
    if policy == "default" and not isinstance(default, list | tuple):
        return pc.fill_null(column, pa.scalar(default, kind))
    if policy == "empty" and (pt.is_string(kind) or pt.is_large_string(kind)):
        return pc.fill_null(column, pa.scalar("", kind))
    if policy == "empty" and (pt.is_binary(kind) or pt.is_large_binary(kind)):
        return pc.fill_null(column, pa.scalar(b"", kind))
    raise ValueError(f'a null {kind}, and the policy of this column is null="{policy}"; give a default=')
