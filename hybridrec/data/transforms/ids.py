"""Values to ids: hash, modulo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_whole
from hybridrec.data.hashing import SEED, check_seed, hash_array, is_hashable
from hybridrec.data.transforms.base import ValueTransform
from hybridrec.data.transforms.numpy_arrays import to_arrow, to_numpy
from hybridrec.data.transforms.parameters import integer, positive, store


@dataclass(frozen=True)
class Hash(ValueTransform):
    """XXH64 of each value, as int64: strings and binary by their bytes, whole numbers by their 8 bytes.

    Of a dictionary column only the dictionary is hashed.

    >>> Hash()(pa.array(["a"])).to_pylist()
    [-3292477735350538661]
    """

    seed: int = SEED
    op: ClassVar[str] = "hash"
    _takes: ClassVar[str] = "strings, binary and whole numbers (bucketize floats)"

    def __post_init__(self) -> None:
        store(self, seed=check_seed(integer(self, "seed")))

    def _apply(self, flat: pa.Array) -> pa.Array:
        return hash_array(flat, self.seed)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if is_hashable(kind) else None


@dataclass(frozen=True)
class Modulo(ValueTransform):
    """Whole numbers to 0 .. n-1, as int64; never negative, so ids wrap into a table of n rows.

    >>> Modulo(10)(pa.array([13, -1, None])).to_pylist()
    [3, 9, None]
    """

    n: int
    op: ClassVar[str] = "modulo"
    _takes: ClassVar[str] = "whole numbers (hash strings first)"

    def __post_init__(self) -> None:
        store(self, n=positive(self, "n"))

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = to_numpy(flat)
        return to_arrow(remainder(values, self.n), nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if is_whole(kind) or pa.types.is_null(kind) else None


def remainder(values: np.ndarray, n: int) -> np.ndarray:
    """The non-negative remainder, as int64."""
    if values.dtype == np.uint64:
        return (values % np.uint64(n)).astype(np.int64)
    values = values.astype(np.int64, copy=False)
    # NumPy vectorises // but not %; where the product wraps, so does the difference
    return values - values // n * n
