"""Numbers in a declaration, checked when it is made."""

from __future__ import annotations

import math
import operator
from typing import Any


def whole(owner: str, name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    """The value as an int from `least` to `most`, or an error that says whose it is.

    >>> whole("table 'item'", "dim", 8, least=1)
    8
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{owner}: {name} is {value!r}; it must be a whole number")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{owner}: {name} is {number}; it must be from {least} to {most}")
    return number


def finite(owner: str, name: str, value: Any) -> float:
    """The value as a finite float, or an error that says whose it is.

    >>> finite("Uniform", "scale", 1)
    1.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{owner}: {name} is {value!r}; it must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{owner}: {name} is {value}; it must be finite")
    return float(value)


def keep(owner: Any, **values: Any) -> None:
    """Store checked values in a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(owner, name, value)
