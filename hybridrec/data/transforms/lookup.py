"""Values looked up among known ones: their place (vocabulary), or whether they are there (is in)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from hybridrec.data.join import KeyIndex
from hybridrec.data.lists import null_mask
from hybridrec.data.transforms.base import ValueTransform
from hybridrec.data.transforms.numpy_arrays import to_arrow
from hybridrec.data.transforms.parameters import Op, integer, sequence, store


@dataclass(frozen=True)
class Lookup(ValueTransform):
    """Distinct strings or whole numbers among which the values of a column are found."""

    values: tuple[str, ...] | tuple[int, ...]
    _index: KeyIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values, keys = _known(self, sequence(self, "values"))
        try:
            store(self, values=values, _index=KeyIndex(keys))
        except ValueError as error:
            raise ValueError(f"{self.op}: {error}") from None

    @property
    def _takes(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  (depends on the values here)
        return "strings or binary" if isinstance(self.values[0], str) else "whole numbers"

    def _find(self, flat: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
        """The place of each value among the known ones, -1 where it is not there, and which are null."""
        hidden = pa.types.is_dictionary(flat.type) and flat.dictionary.null_count  # nulls among its values
        return self._index.find(flat), null_mask(flat.dictionary_decode() if hidden else flat)

    def _shown(self) -> str:
        return ", ".join(map(repr, self.values[:3])) + (", ..." if len(self.values) > 3 else "")


@dataclass(frozen=True)
class Vocabulary(Lookup):
    """Known strings or whole numbers to 1 + their place among `values`, as int64; unknown ones to `oov`.

    `oov` is an id outside 1 .. len(values) (0 unless told otherwise), "error" to refuse unknown values, or
    "null" to leave them to the null policy.

    >>> Vocabulary(["red", "blue"])(pa.array(["blue", "pink", None])).to_pylist()
    [2, 0, None]
    """

    oov: int | Literal["error", "null"] = 0
    op: ClassVar[str] = "vocabulary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oov not in ("error", "null"):
            store(self, oov=integer(self, "oov"))
            if 1 <= self.oov <= len(self.values):
                raise ValueError(f"vocabulary: oov {self.oov} is the id of {self.values[self.oov - 1]!r}; use 0")

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.values)} values: {self._shown()}; oov={self.oov!r})"

    def _apply(self, flat: pa.Array) -> pa.Array:
        found, nulls = self._find(flat)
        unknown = found < 0 if nulls is None else (found < 0) & ~nulls
        if self.oov == "error" and unknown.any():
            value = flat[int(np.argmax(unknown))].as_py()
            raise ValueError(f"{self!r} does not know {value!r}; add it, or choose another oov")
        if self.oov == "null":
            return to_arrow(found + 1, found < 0)
        ids = found + 1
        if not isinstance(self.oov, str):
            ids[unknown] = self.oov
        return to_arrow(ids, nulls)

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.int64() if self._index.matches(kind) else None


@dataclass(frozen=True)
class IsIn(Lookup):
    """1.0 for strings or whole numbers that are among `values`, 0.0 for all others, as float32.

    It makes labels out of words: state the positive ones. Null stays null, for the null policy to decide.

    >>> IsIn([">50K", ">50K."])(pa.array([">50K", "<=50K", None])).to_pylist()
    [1.0, 0.0, None]
    """

    op: ClassVar[str] = "is_in"

    def __repr__(self) -> str:
        return f"IsIn([{self._shown()}])"

    def _apply(self, flat: pa.Array) -> pa.Array:
        found, nulls = self._find(flat)
        return to_arrow(found >= 0, nulls, pa.float32())

    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        return pa.float32() if self._index.matches(kind) else None


def _known(transform: Op, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], pa.Array]:
    """Known values as plain Python ones and as an Arrow array: all strings, or all whole numbers."""
    want = str if isinstance(values[0], str) else int | np.integer
    odd = [v for v in values if isinstance(v, bool) or not isinstance(v, want)]
    if odd:
        raise TypeError(f"{transform.op}: {odd[0]!r} does not fit; values are all strings or all whole numbers")
    if want is str:
        return values, pa.array(values, pa.large_string())
    values = tuple(map(int, values))
    return values, _id_array(transform, values)


def _id_array(transform: Op, values: tuple[int, ...]) -> pa.Array:
    """Python integers as int64, or as uint64 where they need it."""
    signed = min(values) < 0 or max(values) < 2**63
    kind, low, high = (pa.int64(), -(2**63), 2**63 - 1) if signed else (pa.uint64(), 0, 2**64 - 1)
    odd = next((v for v in values if not low <= v <= high), None)
    if odd is not None:
        raise ValueError(f"{transform.op}: {odd} does not fit with the others in {kind}; use values of one 64-bit type")
    return pa.array(values, kind)
