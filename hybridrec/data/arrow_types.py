"""Questions about Arrow types, and their JSON form."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_LISTS = {"list": pa.list_, "large_list": pa.large_list}


def is_list(type_: pa.DataType) -> bool:
    """Whether a row holds several values.

    >>> is_list(pa.list_(pa.int8())), is_list(pa.int8())
    (True, False)
    """
    return pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)


def list_depth(type_: pa.DataType) -> int:
    """How many lists lie around the element."""
    return 1 + list_depth(type_.value_type) if is_list(type_) else 0


def fixed_size(type_: pa.DataType) -> int | None:
    """The length of a fixed-size list, else None."""
    return type_.list_size if pt.is_fixed_size_list(type_) else None


def element_type(type_: pa.DataType) -> pa.DataType:
    """The innermost type: lists and dictionaries taken off."""
    while is_list(type_) or pt.is_dictionary(type_):
        type_ = type_.value_type
    return type_


def without_dictionary(type_: pa.DataType) -> pa.DataType:
    """The type of a column once its dictionary is decoded."""
    return type_.value_type if pt.is_dictionary(type_) else type_


def without_views(type_: pa.DataType) -> pa.DataType:
    """The type with large strings and binary for views of them, which Arrow cannot gather."""
    if is_list(type_):
        inner = type_.value_field.with_type(without_views(type_.value_type))
        size = fixed_size(type_)
        return pa.large_list(inner) if pt.is_large_list(type_) else pa.list_(inner, -1 if size is None else size)
    if pt.is_string_view(type_):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary_view(type_) else type_


def is_text(type_: pa.DataType) -> bool:
    """Strings and binary of every layout."""
    string = pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)
    binary = pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_binary_view(type_)
    return string or binary or pt.is_fixed_size_binary(type_)


def is_whole(type_: pa.DataType) -> bool:
    """Types whose values are whole numbers: integers, bools, dates and times, but not intervals."""
    moment = pt.is_temporal(type_) and not pt.is_interval(type_)
    return pt.is_integer(type_) or pt.is_boolean(type_) or moment


def is_number(type_: pa.DataType) -> bool:
    """Whole numbers, floats, decimals, and the null type, which stands for any."""
    return is_whole(type_) or pt.is_floating(type_) or pt.is_decimal(type_) or pt.is_null(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """What a value is, whatever its encoding: no dictionaries, extensions or views, one kind of list and string.

    >>> plain_type(pa.dictionary(pa.int32(), pa.large_string()))
    DataType(string)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if pt.is_fixed_size_list(type_):
        return pa.list_(plain_type(type_.value_type), type_.list_size)
    if is_list(type_) or pt.is_list_view(type_) or pt.is_large_list_view(type_):
        return pa.list_(plain_type(type_.value_type))
    if pt.is_large_string(type_) or pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_large_binary(type_) or pt.is_binary_view(type_) else type_


def type_to_json(type_: pa.DataType) -> Any:
    """A type as JSON: a name, or an object for what has parts.

    >>> type_to_json(pa.list_(pa.int64()))
    {'list': 'int64'}
    """
    if pt.is_fixed_size_list(type_):
        return {"fixed_size_list": type_to_json(type_.value_type), "size": type_.list_size}
    if is_list(type_):
        return {"large_list" if pt.is_large_list(type_) else "list": type_to_json(type_.value_type)}
    if pt.is_dictionary(type_):
        return {"dictionary": type_to_json(type_.value_type)}
    if pt.is_decimal(type_):
        return {"decimal": [type_.precision, type_.scale], "bits": type_.bit_width}
    if pt.is_timestamp(type_):
        return {"timestamp": type_.unit, "tz": type_.tz}
    if pt.is_fixed_size_binary(type_):
        return {"fixed_size_binary": type_.byte_width}
    if pt.is_struct(type_):
        return {"struct": {field.name: type_to_json(field.type) for field in type_}}
    return str(type_)


def type_from_json(made: Any) -> pa.DataType:
    """The inverse of `type_to_json`."""
    if isinstance(made, str):
        try:
            return pa.type_for_alias(made)
        except ValueError:
            raise ValueError(f"{made!r} is not the name of an Arrow type (int64, float32, string, ...)") from None
    if "fixed_size_list" in made:
        return pa.list_(type_from_json(made["fixed_size_list"]), made["size"])
    if "dictionary" in made:
        return pa.dictionary(pa.int32(), type_from_json(made["dictionary"]))
    if "decimal" in made:
        return (pa.decimal128 if made["bits"] <= 128 else pa.decimal256)(*made["decimal"])
    if "timestamp" in made:
        return pa.timestamp(made["timestamp"], made["tz"])
    if "fixed_size_binary" in made:
        return pa.binary(made["fixed_size_binary"])
    if "struct" in made:
        return pa.struct({name: type_from_json(kind) for name, kind in made["struct"].items()})
    for name, build in _LISTS.items():
        if name in made:
            return build(type_from_json(made[name]))
    raise ValueError(f"{made!r} does not describe an Arrow type")
