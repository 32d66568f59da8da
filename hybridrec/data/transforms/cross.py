"""Two columns to one id per pair of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_list, is_text, without_dictionary
from hybridrec.data.hashing import SEED, as_int64, check_seed, hash_array, hash_pairs, is_hashable
from hybridrec.data.lists import offsets_of, ranges, renest, unnest
from hybridrec.data.transforms.ids import remainder
from hybridrec.data.transforms.numpy_arrays import to_arrow, to_numpy
from hybridrec.data.transforms.parameters import as_json, integer, positive, store


@dataclass(frozen=True)
class Cross:
    """One id for each pair of values of two columns: XXH64 over the pair of int64 (strings hashed first).

    Two scalars give a scalar; a list gives a list with every pair, the left value slowest. With `buckets`
    the ids are 0 .. buckets-1. A pair with a null half is null, a row with a null list is null.

    >>> Cross("user", "tags", buckets=100)(pa.array([1, 2]), pa.array([[3, 4], []])).to_pylist()
    [[8, 21], []]
    """

    left: str
    right: str
    name: str | None = None
    buckets: int | None = None
    seed: int = SEED
    op: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        for key in ("left", "right"):
            if not isinstance(getattr(self, key), str):
                raise TypeError(f"cross: {key} is {getattr(self, key)!r}; it must be the name of a column")
        store(self, seed=check_seed(integer(self, "seed")), name=self.name or f"{self.left}_x_{self.right}")
        if self.buckets is not None:
            store(self, buckets=positive(self, "buckets"))

    def output(self, left: pa.DataType, right: pa.DataType) -> pa.DataType:
        """The type of the crossed column."""
        for column, kind in ((self.left, left), (self.right, right)):
            if not is_hashable(kind.value_type if is_list(kind) else kind):
                raise TypeError(
                    f"{self!r}: column {column!r} is {kind}; cross takes whole numbers, text, lists of them"
                )
        lists = [kind for kind in (left, right) if is_list(kind)]
        if not lists:
            return pa.int64()
        if all(map(pa.types.is_fixed_size_list, lists)):
            return pa.list_(pa.int64(), math.prod(kind.list_size for kind in lists))
        return pa.large_list(pa.int64()) if any(map(pa.types.is_large_list, lists)) else pa.list_(pa.int64())

    def __call__(self, left: pa.Array, right: pa.Array) -> pa.Array:
        kind = self.output(left.type, right.type)
        if len(left) != len(right):
            raise ValueError(f"{self!r}: the columns have {len(left)} and {len(right)} rows; they must have as many")
        if not is_list(kind):
            return self._ids(_words(left, self.seed), _words(right, self.seed))
        (a, a_offsets, a_valid), (b, b_offsets, b_valid) = map(_as_lists, (left, right))
        valid = a_valid if b_valid is None else b_valid if a_valid is None else a_valid & b_valid
        lengths = np.diff(a_offsets) * np.diff(b_offsets)
        ends = offsets_of(lengths if valid is None else lengths * valid)
        pair = ranges(np.zeros(len(lengths), np.int64), ends)  # number of the pair within its row
        counts = np.diff(ends)
        width = np.repeat(np.diff(b_offsets), counts)
        at_a = np.repeat(a_offsets[:-1], counts) + pair // np.maximum(width, 1)
        at_b = np.repeat(b_offsets[:-1], counts) + pair % np.maximum(width, 1)
        picked = (_words(v, self.seed).take(pa.array(at)) for v, at in ((a, at_a), (b, at_b)))
        return renest(kind, self._ids(*picked), ends, valid)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns back into an equal cross."""
        return as_json(self)

    def _ids(self, left: pa.Array, right: pa.Array) -> pa.Array:
        (a, a_nulls), (b, b_nulls) = to_numpy(left), to_numpy(right)
        ids = hash_pairs(a, b, self.seed)
        nulls = a_nulls if b_nulls is None else b_nulls if a_nulls is None else a_nulls | b_nulls
        return to_arrow(ids if self.buckets is None else remainder(ids, self.buckets), nulls)


def _as_lists(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """unnest, with a scalar column as lists of one."""
    return unnest(array) if is_list(array.type) else (array, np.arange(len(array) + 1), None)


def _words(array: pa.Array, seed: int) -> pa.Array:
    """A flat column as int64: whole numbers as they are, text hashed."""
    if is_text(without_dictionary(array.type)):
        return hash_array(array, seed)
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return array.cast(pa.int64()) if pa.types.is_null(array.type) else as_int64(array)
