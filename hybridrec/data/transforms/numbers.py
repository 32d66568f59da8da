"""Numbers to numbers and to buckets: bucketize, log1p, standardize, clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hybridrec.data.arrow_types import is_number, is_whole, without_dictionary
from hybridrec.data.transforms.base import ValueTransform
from hybridrec.data.transforms.numpy_arrays import to_arrow, to_numpy
from hybridrec.data.transforms.parameters import finite, sequence, store


@dataclass(frozen=True)
class Bucketize(ValueTransform):
    """Numbers to the count of boundaries that are <= the number: 0 .. len(boundaries), as int64.

    Boundaries rise strictly. NaN has a bucket of its own, len(boundaries) + 1, so a table for the feature
    needs len(boundaries) + 2 rows. The comparison is exact for every integer, also beyond 2**53.

    >>> Bucketize([0, 10])(pa.array([-1.0, 0.0, 9.9, 10.0, float("nan")])).to_pylist()
    [0, 1, 1, 2, 3]
    """

    boundaries: tuple[float, ...]
    op: ClassVar[str] = "bucketize"

    def __post_init__(self) -> None:
        given = sequence(self, "boundaries")
        values = tuple(finite(self, f"boundaries[{i}]", value) for i, value in enumerate(given))
        for left, right in pairwise(values):
            if left >= right:
                raise ValueError(f"bucketize: boundaries must rise strictly, but {left} comes before {right}")
        store(self, boundaries=values)

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = to_numpy(flat)
        if values.dtype.kind == "f":
            edges = np.array([_float_at_least(b) for b in self.boundaries])
            buckets = np.searchsorted(edges, values.astype(np.float64, copy=False), side="right")
            buckets[np.isnan(values)] = len(self.boundaries) + 1
        else:  # x >= b exactly when x >= ceil(b); an edge above the type's range is never reached
            low, high = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
            whole = [max(math.ceil(b), low) for b in self.boundaries if b <= high]
            buckets = np.searchsorted(np.array(whole, values.dtype), values, side="right")
        return to_arrow(buckets.astype(np.int64, copy=False), nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if is_number(kind) else None


@dataclass(frozen=True)
class Log1p(ValueTransform):
    """log(1 + x), for counts and other heavy tails; a value of -1 or less is an error (clip first).

    float16 and float32 give float32, all else float64; NaN stays NaN.

    >>> Log1p()(pa.array([0, None])).to_pylist()
    [0.0, None]
    """

    op: ClassVar[str] = "log1p"

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _to_floats(flat)
        bad = np.flatnonzero(values <= -1)
        if len(bad):
            raise ValueError(f"log1p: {values[bad[0]]} is not above -1; put Clip(0, None) before it")
        return to_arrow(np.log1p(values), nulls, _float_type(flat.type))

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return _float_type(kind) if is_number(kind) else None


@dataclass(frozen=True)
class Standardize(ValueTransform):
    """(x - mean) / std, worked in float64; float16 and float32 give float32, all else float64.

    >>> Standardize(mean=10, std=2)(pa.array([10, 14, None])).to_pylist()
    [0.0, 2.0, None]
    """

    mean: float
    std: float
    op: ClassVar[str] = "standardize"

    def __post_init__(self) -> None:
        store(self, mean=finite(self, "mean", self.mean), std=finite(self, "std", self.std))
        if self.std <= 0:
            raise ValueError(f"standardize: std is {self.std}; it must be above 0 (drop a constant column)")

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _to_floats(flat)
        return to_arrow((values - self.mean) / self.std, nulls, _float_type(flat.type))

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return _float_type(kind) if is_number(kind) else None


@dataclass(frozen=True)
class Clip(ValueTransform):
    """Numbers limited to low .. high (None: no limit on that side); integers keep their type.

    NaN stays NaN; float16 becomes float32, bools, dates and times int64, decimals float64. Limits between
    two integers act on an integer column as the nearest integers inside them.

    >>> Clip(0, 5)(pa.array([-3, 9, None])).to_pylist()
    [0, 5, None]
    """

    low: float | None = None
    high: float | None = None
    op: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        low, high = (v if v is None else finite(self, k, v) for k, v in (("low", self.low), ("high", self.high)))
        store(self, low=low, high=high)
        if low is None and high is None:
            raise ValueError("clip: neither low nor high is given; state at least one limit")
        if low is not None and high is not None and low > high:
            raise ValueError(f"clip: low {low} is above high {high}; swap them")

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = to_numpy(flat)
        low, high = self._limits(values.dtype)
        return to_arrow(np.clip(values, low, high), nulls, self._result(without_dictionary(flat.type)))

    def _limits(self, dtype: np.dtype[Any]) -> tuple[float | None, float | None]:
        """The limits as numbers that the column's type can hold."""
        if dtype.kind == "f":
            least, most, up, down = float(np.finfo(dtype).min), float(np.finfo(dtype).max), float, float
        else:
            least, most, up, down = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), math.ceil, math.floor
        low = None if self.low is None else max(least, up(self.low))
        high = None if self.high is None else min(most, down(self.high))
        if (least if low is None else low) > (most if high is None else high):
            raise ValueError(f"{self!r} leaves no value of type {dtype}; widen the limits or cast the column")
        return low, high

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        if pa.types.is_integer(kind) or pa.types.is_null(kind):
            return kind
        return pa.int64() if is_whole(kind) else _float_type(kind) if is_number(kind) else None


def _to_floats(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    """As to_numpy, in float64."""
    values, nulls = to_numpy(array)
    return values.astype(np.float64, copy=False), nulls


def _float_type(kind: pa.DataType) -> pa.DataType:
    """float32 for what fits in it, else float64."""
    return pa.float32() if without_dictionary(kind) in (pa.float16(), pa.float32()) else pa.float64()


def _float_at_least(value: float) -> float:
    """The smallest float64 that is not below a number: itself, save for integers beyond 2**53."""
    near = float(value)
    return near if near >= value else math.nextafter(near, math.inf)
