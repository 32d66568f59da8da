"""Part: which rows and columns of a table lie where something is drawn for them."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Row r of it is that of id `first + r * stride` in the whole table, and its columns begin at `column`.

    >>> Part(first=1, stride=4, column=8) == ALL
    False
    """

    first: int = 0
    stride: int = 1
    column: int = 0


ALL = Part()
