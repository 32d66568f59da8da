"""Per-feature transforms: Arrow array in, Arrow array out. Nulls stay null and lists keep their shape.

Each is a frozen value that prints, compares and round-trips through JSON. Lists of any kind and depth are
opened, the values inside transformed, and the lists closed again; dictionary columns and slices are welcome.
"""

from __future__ import annotations

import math
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from hybridrec.data.hashing import (
    SEED,
    as_int64,
    check_seed,
    hash_array,
    hash_pairs,
    is_hashable,
    is_text,
    is_whole,
)
from hybridrec.data.join import KeyIndex
from hybridrec.data.restore import is_list, null_mask, offsets_of, ranges, renest, unnest


class Transform(ABC):
    """A vectorised function of one column that keeps its rows, its lists and its nulls.

    `transform(array)` applies it, `output(type)` tells the resulting type (or raises TypeError for a type it
    does not take), `to_json()` and `from_json` carry it through a schema file.

    >>> Modulo(10)(pa.array([[13, None], None, [-1]])).to_pylist()
    [[3, None], None, [9]]
    """

    op: ClassVar[str]

    def __call__(self, array: pa.Array) -> pa.Array:
        self.output(array.type)
        return _map_values(array, self._apply)

    def output(self, kind: pa.DataType) -> pa.DataType:
        """The type of the result for a column of this type."""
        if is_list(kind):
            return _with_values(kind, self.output(kind.value_type))
        result = self._result(kind.value_type if pa.types.is_dictionary(kind) else kind)
        if result is None:
            raise TypeError(f"{self!r} takes {self._takes}, not a column of type {kind}")
        return result

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns back into an equal transform."""
        return _to_json(self)

    _takes: ClassVar[str] = "numbers"

    @abstractmethod
    def _apply(self, flat: pa.Array) -> pa.Array:
        """The transform of an array without lists, of a type that _result accepts (or a dictionary of it)."""

    @abstractmethod
    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        """The type of the values after the transform, None where it does not take them."""


@dataclass(frozen=True)
class Hash(Transform):
    """XXH64 of each value, as int64: strings and binary by their bytes, whole numbers by their 8 bytes.

    Of a dictionary column only the dictionary is hashed.

    >>> Hash()(pa.array(["a"])).to_pylist()
    [-3292477735350538661]
    """

    seed: int = SEED
    op: ClassVar[str] = "hash"
    _takes: ClassVar[str] = "strings, binary and whole numbers (bucketize floats)"

    def __post_init__(self) -> None:
        _set(self, seed=check_seed(_integer(self, "seed")))

    def _apply(self, flat: pa.Array) -> pa.Array:
        return hash_array(flat, self.seed)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if is_hashable(kind) else None


@dataclass(frozen=True)
class Modulo(Transform):
    """Whole numbers to 0 .. n-1, as int64; never negative, so ids wrap into a table of n rows.

    >>> Modulo(10)(pa.array([13, -1, None])).to_pylist()
    [3, 9, None]
    """

    n: int
    op: ClassVar[str] = "modulo"
    _takes: ClassVar[str] = "whole numbers (hash strings first)"

    def __post_init__(self) -> None:
        _set(self, n=_positive(self, "n"))

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _numbers(flat)
        return _array(_modulo(values, self.n), nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if is_whole(kind) or pa.types.is_null(kind) else None


@dataclass(frozen=True)
class Bucketize(Transform):
    """Numbers to the count of boundaries that are <= the number: 0 .. len(boundaries), as int64.

    Boundaries rise strictly. NaN has a bucket of its own, len(boundaries) + 1, so a table for the feature
    needs len(boundaries) + 2 rows. The comparison is exact for every integer, also beyond 2**53.

    >>> Bucketize([0, 10])(pa.array([-1.0, 0.0, 9.9, 10.0, float("nan")])).to_pylist()
    [0, 1, 1, 2, 3]
    """

    boundaries: tuple[float, ...]
    op: ClassVar[str] = "bucketize"

    def __post_init__(self) -> None:
        given = _sequence(self, "boundaries")
        values = tuple(_finite(self, f"boundaries[{i}]", value) for i, value in enumerate(given))
        for left, right in pairwise(values):
            if left >= right:
                raise ValueError(f"bucketize: boundaries must rise strictly, but {left} comes before {right}")
        _set(self, boundaries=values)

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _numbers(flat)
        if values.dtype.kind == "f":
            edges = np.array([_float_at_least(b) for b in self.boundaries])
            buckets = np.searchsorted(edges, values.astype(np.float64, copy=False), side="right")
            buckets[np.isnan(values)] = len(self.boundaries) + 1
        else:  # x >= b exactly when x >= ceil(b); an edge above the type's range is never reached
            low, high = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
            whole = [max(math.ceil(b), low) for b in self.boundaries if b <= high]
            buckets = np.searchsorted(np.array(whole, values.dtype), values, side="right")
        return _array(buckets.astype(np.int64, copy=False), nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if _is_number(kind) else None


@dataclass(frozen=True)
class Log1p(Transform):
    """log(1 + x), for counts and other heavy tails; a value of -1 or less is an error (clip first).

    float16 and float32 give float32, all else float64; NaN stays NaN.

    >>> Log1p()(pa.array([0, None])).to_pylist()
    [0.0, None]
    """

    op: ClassVar[str] = "log1p"

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _floats(flat)
        bad = np.flatnonzero(values <= -1)
        if len(bad):
            raise ValueError(f"log1p: {values[bad[0]]} is not above -1; put Clip(0, None) before it")
        return _array(np.log1p(values), nulls, _float_type(flat.type))

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return _float_type(kind) if _is_number(kind) else None


@dataclass(frozen=True)
class Standardize(Transform):
    """(x - mean) / std, worked in float64; float16 and float32 give float32, all else float64.

    >>> Standardize(mean=10, std=2)(pa.array([10, 14, None])).to_pylist()
    [0.0, 2.0, None]
    """

    mean: float
    std: float
    op: ClassVar[str] = "standardize"

    def __post_init__(self) -> None:
        _set(self, mean=_finite(self, "mean", self.mean), std=_finite(self, "std", self.std))
        if self.std <= 0:
            raise ValueError(f"standardize: std is {self.std}; it must be above 0 (drop a constant column)")

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _floats(flat)
        return _array((values - self.mean) / self.std, nulls, _float_type(flat.type))

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return _float_type(kind) if _is_number(kind) else None


@dataclass(frozen=True)
class Clip(Transform):
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
        low, high = (
            v if v is None else _finite(self, k, v) for k, v in (("low", self.low), ("high", self.high))
        )
        _set(self, low=low, high=high)
        if low is None and high is None:
            raise ValueError("clip: neither low nor high is given; state at least one limit")
        if low is not None and high is not None and low > high:
            raise ValueError(f"clip: low {low} is above high {high}; swap them")

    def _apply(self, flat: pa.Array) -> pa.Array:
        values, nulls = _numbers(flat)
        low, high = self._limits(values.dtype)
        return _array(np.clip(values, low, high), nulls, self._result(_plain(flat.type)))

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
        return pa.int64() if is_whole(kind) else _float_type(kind) if _is_number(kind) else None


@dataclass(frozen=True)
class Truncate(Transform):
    """At most n items of each row's list, the first or the last ones; deeper lists are kept whole.

    A fixed-size list stays one, of min(n, size) items.

    >>> Truncate(2, keep="last")(pa.array([[1, 2, 3], [4], None])).to_pylist()
    [[2, 3], [4], None]
    """

    n: int
    keep: Literal["first", "last"] = "first"
    op: ClassVar[str] = "truncate"

    def __post_init__(self) -> None:
        _set(self, n=_positive(self, "n"))
        if self.keep not in ("first", "last"):
            raise ValueError(f"truncate: keep is {self.keep!r}; valid are 'first', 'last'")

    def __call__(self, array: pa.Array) -> pa.Array:
        kind = self.output(array.type)
        child, offsets, valid = unnest(array)
        lengths = np.diff(offsets)
        if kind == array.type and lengths.max(initial=0) <= self.n:
            return array
        kept = np.minimum(lengths, self.n)
        starts = offsets[:-1] if self.keep == "first" else offsets[1:] - kept
        ends = offsets_of(kept)
        return renest(kind, child.take(pa.array(ranges(starts, ends))), ends, valid)

    def output(self, kind: pa.DataType) -> pa.DataType:
        if not is_list(kind):
            raise TypeError(f"{self!r} takes lists, not a column of type {kind}")
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(kind.value_field, min(self.n, kind.list_size))
        return kind

    def _apply(self, flat: pa.Array) -> pa.Array:
        raise NotImplementedError

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        raise NotImplementedError


@dataclass(frozen=True)
class Vocabulary(Transform):
    """Known strings or whole numbers to 1 + their place among `values`, as int64; unknown ones to `oov`.

    `oov` is an id outside 1 .. len(values) (0 unless told otherwise), "error" to refuse unknown values, or
    "null" to leave them to the null policy.

    >>> Vocabulary(["red", "blue"])(pa.array(["blue", "pink", None])).to_pylist()
    [2, 0, None]
    """

    values: tuple[str, ...] | tuple[int, ...]
    oov: int | Literal["error", "null"] = 0
    _index: KeyIndex = field(init=False, repr=False, compare=False)
    op: ClassVar[str] = "vocabulary"

    def __post_init__(self) -> None:
        values = _sequence(self, "values")
        if all(isinstance(v, str) for v in values):
            keys = pa.array(values, pa.large_string())
        elif all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values):
            values = tuple(map(int, values))
            keys = _id_array(values)
        else:
            odd = next(v for v in values if type(v) is not type(values[0]) or not isinstance(v, str | int))
            raise TypeError(f"vocabulary: {odd!r} does not fit; values are all strings or all whole numbers")
        try:
            _set(self, values=values, _index=KeyIndex(keys))
        except ValueError as error:
            raise ValueError(f"vocabulary: {error}") from None
        if self.oov not in ("error", "null"):
            _set(self, oov=_integer(self, "oov"))
            if 1 <= self.oov <= len(values):
                raise ValueError(f"vocabulary: oov {self.oov} is the id of {values[self.oov - 1]!r}; use 0")

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.values[:3])) + (", ..." if len(self.values) > 3 else "")
        return f"Vocabulary({len(self.values)} values: {shown}; oov={self.oov!r})"

    @property
    def _takes(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  (depends on the values here)
        return "strings or binary" if isinstance(self.values[0], str) else "whole numbers"

    def _apply(self, flat: pa.Array) -> pa.Array:
        found = self._index.find(flat)
        hidden = pa.types.is_dictionary(flat.type) and flat.dictionary.null_count  # nulls among its values
        nulls = null_mask(flat.dictionary_decode() if hidden else flat)
        unknown = found < 0 if nulls is None else (found < 0) & ~nulls
        if self.oov == "error" and unknown.any():
            value = flat[int(np.argmax(unknown))].as_py()
            raise ValueError(f"{self!r} does not know {value!r}; add it, or choose another oov")
        if self.oov == "null":
            return _array(found + 1, found < 0)
        ids = found + 1
        if not isinstance(self.oov, str):
            ids[unknown] = self.oov
        return _array(ids, nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if self._index.matches(kind) else None


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
        _set(self, seed=check_seed(_integer(self, "seed")), name=self.name or f"{self.left}_x_{self.right}")
        if self.buckets is not None:
            _set(self, buckets=_positive(self, "buckets"))

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
            raise ValueError(
                f"{self!r}: the columns have {len(left)} and {len(right)} rows; they must have as many"
            )
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
        return _to_json(self)

    def _ids(self, left: pa.Array, right: pa.Array) -> pa.Array:
        (a, a_nulls), (b, b_nulls) = _numbers(left), _numbers(right)
        ids = hash_pairs(a, b, self.seed)
        nulls = a_nulls if b_nulls is None else b_nulls if a_nulls is None else a_nulls | b_nulls
        return _array(ids if self.buckets is None else _modulo(ids, self.buckets), nulls)


OPS: dict[str, type[Transform] | type[Cross]] = {
    cls.op: cls for cls in (Hash, Modulo, Bucketize, Log1p, Standardize, Clip, Truncate, Vocabulary, Cross)
}


def from_json(value: Mapping[str, Any]) -> Transform | Cross:
    """The transform that a JSON object describes; an unknown op, an unknown or an absent key is an error.

    >>> from_json({"op": "modulo", "n": 10})
    Modulo(n=10)
    """
    if not isinstance(value, Mapping) or "op" not in value:
        raise ValueError(f"a transform is an object with an 'op', not {value!r}; ops are {', '.join(OPS)}")
    if value["op"] not in OPS:
        raise ValueError(f"unknown transform {value['op']!r}; ops are {', '.join(OPS)}")
    cls = OPS[value["op"]]
    given = {key: item for key, item in value.items() if key != "op"}
    valid = [f.name for f in fields(cls) if f.init]  # pyright: ignore[reportArgumentType]  (every op is a dataclass)
    unknown = sorted(map(str, set(given) - set(valid)))
    if unknown:
        raise ValueError(
            f"{value['op']} has no {', '.join(unknown)}; its keys are {', '.join(valid) or 'none'}"
        )
    try:
        return cls(**given)
    except TypeError as error:
        raise TypeError(f"{value['op']}: {error}") from None


# Lists ---------------------------------------------------------------------------------------------------


def _map_values(array: pa.Array, function: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Apply a function to the values inside all lists."""
    if not is_list(array.type):
        return function(array)
    child, offsets, valid = unnest(array)
    child = _map_values(child, function)
    return renest(_with_values(array.type, child.type), child, offsets, valid)


def _with_values(kind: pa.DataType, values: pa.DataType) -> pa.DataType:
    """The same kind of list around other values."""
    inner = kind.value_field.with_type(values).with_nullable(True)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _as_lists(array: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """unnest, with a scalar column as lists of one."""
    return unnest(array) if is_list(array.type) else (array, np.arange(len(array) + 1), None)


# Values ----------------------------------------------------------------------------------------------------


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return is_whole(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)


def _float_type(kind: pa.DataType) -> pa.DataType:
    return pa.float32() if _plain(kind) in (pa.float16(), pa.float32()) else pa.float64()


def _id_array(values: tuple[int, ...]) -> pa.Array:
    """Python integers as int64, or as uint64 where they need it."""
    signed = min(values) < 0 or max(values) < 2**63
    kind, low, high = (pa.int64(), -(2**63), 2**63 - 1) if signed else (pa.uint64(), 0, 2**64 - 1)
    odd = next((v for v in values if not low <= v <= high), None)
    if odd is not None:
        raise ValueError(
            f"vocabulary: {odd} does not fit with the others in {kind}; use values of one 64-bit type"
        )
    return pa.array(values, kind)


def _words(array: pa.Array, seed: int) -> pa.Array:
    """A flat column as int64: whole numbers as they are, text hashed."""
    if is_text(_plain(array.type)):
        return hash_array(array, seed)
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return array.cast(pa.int64()) if pa.types.is_null(array.type) else as_int64(array)


def _numbers(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
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


def _floats(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    values, nulls = _numbers(array)
    return values.astype(np.float64, copy=False), nulls


def _array(values: np.ndarray, nulls: np.ndarray | None, kind: pa.DataType | None = None) -> pa.Array:
    if kind is not None and pa.types.is_null(kind):
        return pa.nulls(len(values))
    values = values if kind is None else values.astype(kind.to_pandas_dtype(), copy=False)
    return pa.array(values, mask=nulls, from_pandas=False)


def _modulo(values: np.ndarray, n: int) -> np.ndarray:
    """The non-negative remainder, as int64."""
    if values.dtype == np.uint64:
        return (values % np.uint64(n)).astype(np.int64)
    values = values.astype(np.int64, copy=False)
    return (
        values - values // n * n
    )  # NumPy vectorises // but not %; where the product wraps, so does the difference


def _float_at_least(value: float) -> float:
    """The smallest float64 that is not below a number: itself, save for integers beyond 2**53."""
    near = float(value)
    return near if near >= value else math.nextafter(near, math.inf)


# Parameters ------------------------------------------------------------------------------------------------


def _to_json(transform: Transform | Cross) -> dict[str, Any]:
    names = [f.name for f in fields(transform) if f.init]  # pyright: ignore[reportArgumentType]  (a dataclass)
    values = {name: getattr(transform, name) for name in names}
    return {"op": transform.op} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _set(transform: Transform | Cross, **values: Any) -> None:
    """Store checked parameters in a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(transform, name, value)


def _integer(transform: Transform | Cross, name: str) -> int:
    value = getattr(transform, name)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a whole number")
    value = operator.index(value)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{transform.op}: {name} is {value}; it must fit in 64 bits")
    return value


def _positive(transform: Transform | Cross, name: str) -> int:
    value = _integer(transform, name)
    if not 0 < value < 2**63:
        raise ValueError(f"{transform.op}: {name} is {value}; it must be from 1 to 2**63 - 1")
    return value


def _finite(transform: Transform, name: str, value: Any) -> float:
    """A finite number, as int if it is whole by type, else as float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a number")
    number = int(value) if isinstance(value, int | np.integer) else float(value)
    if not abs(number) <= sys.float_info.max:
        raise ValueError(f"{transform.op}: {name} is {value}; it must be finite")
    return number


def _sequence(transform: Transform, name: str) -> tuple[Any, ...]:
    value = getattr(transform, name)
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a list")
    values = tuple(value.tolist() if isinstance(value, np.ndarray) else value)
    if not values:
        raise ValueError(f"{transform.op}: {name} is empty; give at least one")
    return values
