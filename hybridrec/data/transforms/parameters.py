"""The parameters of a transform: checked when it is made, stored in its frozen fields, written as JSON."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Set
from dataclasses import fields
from typing import Any, ClassVar, Protocol

import numpy as np


class Op(Protocol):
    """A frozen dataclass with a name in JSON: every transform, and the cross of two columns."""

    op: ClassVar[str]


def as_json(transform: Op) -> dict[str, Any]:
    """The op and the parameters, tuples as lists."""
    names = [f.name for f in fields(transform) if f.init]  # pyright: ignore[reportArgumentType]  (a dataclass)
    values = {name: getattr(transform, name) for name in names}
    return {"op": transform.op} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def store(transform: Op, **values: Any) -> None:
    """Store checked parameters in a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(transform, name, value)


def integer(transform: Op, name: str) -> int:
    """The parameter as a whole number of 64 bits, or an error."""
    value = getattr(transform, name)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a whole number")
    value = operator.index(value)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{transform.op}: {name} is {value}; it must fit in 64 bits")
    return value


def positive(transform: Op, name: str) -> int:
    """The parameter as a whole number above 0, or an error."""
    value = integer(transform, name)
    if not 0 < value < 2**63:
        raise ValueError(f"{transform.op}: {name} is {value}; it must be from 1 to 2**63 - 1")
    return value


def finite(transform: Op, name: str, value: Any) -> float:
    """A finite number, as int if it is whole by type, else as float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a number")
    number = int(value) if isinstance(value, int | np.integer) else float(value)
    if not abs(number) <= sys.float_info.max:
        raise ValueError(f"{transform.op}: {name} is {value}; it must be finite")
    return number


def sequence(transform: Op, name: str) -> tuple[Any, ...]:
    """The parameter as a tuple that is not empty, or an error; a set has no order that another run shares."""
    value = getattr(transform, name)
    if isinstance(value, str | bytes | Set | Mapping) or not hasattr(value, "__iter__"):
        raise TypeError(f"{transform.op}: {name} is {value!r}; it must be a list")
    values = tuple(value.tolist() if isinstance(value, np.ndarray) else value)
    if not values:
        raise ValueError(f"{transform.op}: {name} is empty; give at least one")
    return values
