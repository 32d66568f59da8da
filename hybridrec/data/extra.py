"""Columns that travel as they are (`batch.extra`): one type for all chunks, nulls replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from hybridrec.data.arrow_types import is_list, is_text, plain_type
from hybridrec.data.lists import map_values, offsets_of


def extra_type(kind: pa.DataType) -> pa.DataType:
    """The type a column travels in: times as integers, decimals as doubles, one kind of list and string.

    >>> extra_type(pa.large_list(pa.timestamp("s")))
    ListType(list<item: int64>)
    """
    kind = plain_type(kind)
    if pt.is_fixed_size_list(kind):
        return pa.list_(extra_type(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.list_(extra_type(kind.value_type))
    if pt.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.float64() if pt.is_decimal(kind) else pa.float32() if pt.is_null(kind) else kind


def carried(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as `kind`, one of `extra_type`: files and chunks may encode it differently."""
    if column.type == kind:
        return column
    leaf = kind
    while is_list(leaf):
        leaf = leaf.value_type
    return map_values(column, lambda flat: _decoded(flat).cast(leaf)).cast(kind)


def _decoded(flat: pa.Array) -> pa.Array:
    return flat.dictionary_decode() if pt.is_dictionary(flat.type) else flat


def without_nulls(column: pa.Array, policy: str, defaults: Sequence[pa.Scalar] = ()) -> pa.Array:
    """The column with its nulls replaced, at every level.

    `policy` is "error"; "empty": a null list is empty, a null element is dropped, a null string is "", and a
    null number outside lists is an error; or "default": `defaults` holds what replaces a null row, and then,
    level by level, a null list or element inside it.

    >>> without_nulls(pa.array([[1, None], None]), "empty").to_pylist()
    [[1], []]
    """
    if not _has_nulls(column):
        return column
    if pt.is_fixed_size_list(column.type):  # rows may lose elements
        column = column.cast(pa.list_(column.type.value_type))
    if not is_list(column.type):
        return _filled(column, policy, defaults)
    if column.null_count and policy != "empty":
        column = _filled(column, policy, defaults)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)  # pyright: ignore[reportAttributeAccessIssue] (made at import)
    values = pc.list_flatten(column)  # pyright: ignore[reportAttributeAccessIssue] (made at import); leaves out what lies under null lists
    if not is_list(values.type) and values.null_count and policy == "empty":
        owner = np.repeat(np.arange(len(lengths)), lengths)
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.bincount(owner[kept], minlength=len(lengths))
        values = values.drop_null()
    return pa.LargeListArray.from_arrays(offsets_of(lengths), without_nulls(values, policy, defaults[1:]))


def _has_nulls(column: pa.Array) -> bool:
    return column.null_count > 0 or (is_list(column.type) and _has_nulls(column.flatten()))


def _filled(column: pa.Array, policy: str, defaults: Sequence[pa.Scalar]) -> pa.Array:
    kind = column.type
    if policy == "default" and defaults:
        value = pa.array([defaults[0].as_py()], kind)
    elif policy == "empty" and is_text(kind):
        value = pa.array([""]).cast(kind)
    elif policy == "default":
        raise ValueError(f"a null {kind} inside a row, and the default stands for whole rows; give a single value")
    else:
        raise ValueError(f'a null {kind}, and the policy of this column is null="{policy}"; give a default=')
    missing = column.is_null().to_numpy(zero_copy_only=False)
    place = np.where(missing, len(column), np.arange(len(column)))
    return pa.concat_arrays([column, value]).take(pa.array(place))
