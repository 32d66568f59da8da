"""XXH64 for Python values and Arrow columns. String ids are XXH64 of their UTF-8 bytes with seed 0."""

from __future__ import annotations

import operator

import numpy as np
import pyarrow as pa

from hybridrec import _native
from hybridrec.data.arrow_types import is_text, is_whole
from hybridrec.data.lists import null_mask

SEED = 0


def xxh64(data: bytes | str, seed: int = SEED) -> int:
    """XXH64 of some bytes, or of a string's UTF-8 bytes, as an unsigned 64-bit number.

    Columns hold the same 64 bits as a signed int64: subtract 2**64 from results of 2**63 and more.

    >>> hex(xxh64(b""))
    '0xef46db3751d8e999'
    """
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"xxh64 takes bytes or str, not {type(data).__name__}; encode the value first")
    return _native.xxh64(bytes(data), check_seed(seed))


def hash_array(array: pa.Array, seed: int = SEED) -> pa.Int64Array:
    """XXH64 of every value of a flat column, as int64 (the same 64 bits); nulls stay null.

    Strings and binary hash their bytes; integers, bools, dates and times hash the 8 little-endian bytes
    of the value as int64. Of a dictionary column only the dictionary is hashed.

    >>> hash_array(pa.array(["a", None])).to_pylist()
    [-3292477735350538661, None]
    """
    seed = check_seed(seed)
    kind = array.type
    if pa.types.is_dictionary(kind):
        if len(array.dictionary) > len(array):  # a short slice of a large dictionary
            return hash_array(array.dictionary_decode(), seed)
        return hash_array(array.dictionary, seed).take(array.indices)
    if not is_hashable(kind):
        raise TypeError(
            f"a column of type {kind} cannot be hashed; "
            "integers, bools, dates, times, strings, binary and dictionaries of them can (bucketize floats)"
        )
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.int64())
    out = np.empty(len(array), np.int64)
    if is_text(kind):
        _hash_text(array, out, seed)
    elif len(array):
        ints = as_int64(array)
        address = ints.buffers()[1].address + 8 * ints.offset
        _native.hash_int64(address, len(ints), out.ctypes.data, seed)
    return pa.array(out, mask=null_mask(array))


def hash_pairs(left: np.ndarray, right: np.ndarray, seed: int = SEED) -> np.ndarray:
    """XXH64 over the 16 little-endian bytes of each pair of int64, as int64."""
    pairs = np.stack([left, right], axis=1, dtype=np.int64)  # [n, 2]
    ends = np.arange(0, 16 * len(pairs) + 1, 16, dtype=np.int64)
    out = np.empty(len(pairs), np.int64)
    if len(pairs):
        _native.hash_bytes(ends.ctypes.data, 8, pairs.ctypes.data, len(pairs), out.ctypes.data, check_seed(seed))
    return out


def as_int64(array: pa.Array) -> pa.Array:
    """Integers, bools, dates and times as the int64 they are stored as; uint64 keeps its 64 bits."""
    kind = array.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return array.view(pa.int32()).cast(pa.int64())
    if pa.types.is_uint64(kind) or pa.types.is_temporal(kind):
        return array.view(pa.int64())
    return array.cast(pa.int64())


def is_hashable(kind: pa.DataType) -> bool:
    """Flat types that hash_array takes."""
    if pa.types.is_dictionary(kind):
        return is_hashable(kind.value_type)
    return is_text(kind) or is_whole(kind) or pa.types.is_null(kind)


def check_seed(seed: int) -> int:
    """The seed as an unsigned 64-bit number, or an error."""
    value = operator.index(seed)
    if not 0 <= value < 2**64:
        raise ValueError(f"seed {value} is outside 0 .. 2**64 - 1; choose an unsigned 64-bit number")
    return value


def _hash_text(array: pa.Array, out: np.ndarray, seed: int) -> None:
    """Hash the bytes of every slot, null ones included (their extent is valid, their hash unused)."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif kind in (pa.string_view(), pa.binary_view()):
        array = array.cast(pa.large_binary())
    if not len(array):
        return
    width = 8 if array.type in (pa.large_string(), pa.large_binary()) else 4
    _, offsets, data = array.buffers()
    address = data.address if data else 0
    _native.hash_bytes(offsets.address + width * array.offset, width, address, len(array), out.ctypes.data, seed)
