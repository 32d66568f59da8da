"""Columns of every shape for the tests of transforms, and the check against a plain Python oracle."""

from __future__ import annotations

import math
import struct

import numpy as np
import pyarrow as pa
import xxhash
from hypothesis import strategies as st

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
LISTS = [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)]
WORDS = st.sampled_from(["", "a", "b", "žluť", "a string of more than thirty-two bytes, indeed"])


def numbers_of(name: str) -> st.SearchStrategy:
    if name.startswith("float"):
        return st.floats(width=int(name[5:]), allow_infinity=False)
    limits = np.iinfo(name)
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def columns(draw, values: st.SearchStrategy, kind: pa.DataType, max_depth: int = 2) -> pa.Array:
    """These values, flat or nested, with nulls at each level, perhaps sliced, perhaps a dictionary."""
    item = st.none() | values
    for wrap in draw(st.lists(st.sampled_from(LISTS), max_size=max_depth)):
        kind = wrap(kind)
        fixed = pa.types.is_fixed_size_list(kind)
        item = st.none() | st.lists(item, min_size=2 if fixed else 0, max_size=2 if fixed else 3)
    rows = draw(st.lists(item, max_size=8))
    array = pa.array(rows, kind)
    if not pa.types.is_nested(kind) and draw(st.booleans()):
        array = array.dictionary_encode()
    return array.slice(draw(st.integers(0, len(rows))), draw(st.integers(0, len(rows))))


def deep(function, value):
    if value is None:
        return None
    return [deep(function, v) for v in value] if isinstance(value, list) else function(value)


def same(got, want) -> bool:
    """Equal nests; NaN equals NaN, floats to float32 precision."""
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, float) and got is not None:
        return (math.isnan(got) and math.isnan(want)) or math.isclose(got, want, rel_tol=2e-7, abs_tol=1e-37)
    return got == want and type(got) is type(want)


def check(transform, array: pa.Array, function) -> None:
    result = transform(array)
    result.validate(full=True)
    assert result.type == transform.output(array.type)
    assert same(result.to_pylist(), deep(function, array.to_pylist()))


def xxh(value: int | str | bytes, seed: int = 0) -> int:
    data = value.encode() if isinstance(value, str) else value
    data = (data % 2**64).to_bytes(8, "little") if isinstance(data, int) else data
    return struct.unpack("<q", struct.pack("<Q", xxhash.xxh64_intdigest(data, seed)))[0]
