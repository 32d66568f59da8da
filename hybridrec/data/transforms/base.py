"""What every transform of one column can do, and how one that works value by value does it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from hybridrec.data.arrow_types import is_list, without_dictionary
from hybridrec.data.lists import map_values, with_values
from hybridrec.data.transforms.parameters import as_json


class Transform(ABC):
    """A vectorised function of one column that keeps its rows and its nulls.

    `transform(array)` applies it, `output(type)` tells the resulting type (or raises TypeError for a type it
    does not take), `to_json()` and `from_json` carry it through a schema file.

    >>> from hybridrec.data.transforms import Modulo
    >>> Modulo(10)(pa.array([[13, None], None, [-1]])).to_pylist()
    [[3, None], None, [9]]
    """

    op: ClassVar[str]

    @abstractmethod
    def __call__(self, array: pa.Array) -> pa.Array:
        """The transformed column."""

    @abstractmethod
    def output(self, kind: pa.DataType) -> pa.DataType:
        """The type of the result for a column of this type."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` turns back into an equal transform."""
        return as_json(self)


class ValueTransform(Transform):
    """A transform of each value by itself, inside lists of any kind and depth."""

    _takes: ClassVar[str] = "numbers"

    def __call__(self, array: pa.Array) -> pa.Array:
        self.output(array.type)
        return map_values(array, self._apply)

    def output(self, kind: pa.DataType) -> pa.DataType:
        if is_list(kind):
            return with_values(kind, self.output(kind.value_type))
        result = self._result(without_dictionary(kind))
        if result is None:
            raise TypeError(f"{self!r} takes {self._takes}, not a column of type {kind}")
        return result

    @abstractmethod
    def _apply(self, flat: pa.Array) -> pa.Array:
        """The transform of an array without lists, of a type that _result accepts (or a dictionary of it)."""

    @abstractmethod
    def _result(self, kind: pa.DataType) -> pa.DataType | None:
        """The type of the values after the transform, None where it does not take them."""
