"""Ragged from nested Python lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybridrec.types.ragged import Ragged, Text, offsets_of


def from_lists(rows: Sequence[Any], dtype: torch.dtype | None = None) -> Ragged:
    """A Ragged of these rows, taken apart level by level from the outside."""
    levels: list[Tensor] = []
    items = _entries(rows)
    while any(map(_is_list, items)) or not (levels or items):
        for place, item in enumerate(items):
            if not _is_list(item):
                raise ValueError(
                    f"rows must be nested equally deep, but entry {place} of level {len(levels)} is {item!r} "
                    "among lists"
                )
        items = [_entries(item) for item in items]
        levels.append(offsets_of(torch.tensor([len(item) for item in items], dtype=torch.int64)))
        items = [entry for item in items for entry in item]
    made = _leaf(items, dtype)
    for offsets in reversed(levels):
        made = Ragged.trusted(made, offsets)
    if isinstance(made, Tensor):
        raise TypeError(f"a row must be a list or a string, got {items[0]!r}; one number per row is a tensor")
    return made


def numbers(items: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    """The numbers as a tensor; int64 where there are none."""
    if any(item is None for item in items):
        raise ValueError("None among the values: a Ragged has no nulls; fill or drop them first")
    try:
        return torch.tensor(items, dtype=dtype or (None if items else torch.int64))
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"the values do not fit {dtype or 'int64, float32 or bool'}: {error}") from error


def _is_list(item: Any) -> bool:
    return isinstance(item, list | tuple) or (hasattr(item, "tolist") and item.ndim > 0)


def _entries(item: Any) -> Sequence[Any]:
    return item.tolist() if hasattr(item, "tolist") else item


def _leaf(items: Sequence[Any], dtype: torch.dtype | None) -> Tensor | Ragged:
    if any(isinstance(item, str) for item in items):
        return _strings(items, str, "utf8")
    if any(isinstance(item, bytes) for item in items):
        return _strings(items, bytes, "binary")
    return numbers(items, dtype)


def _strings(items: Sequence[Any], kind: type, text: Text) -> Ragged:
    for item in items:
        if not isinstance(item, kind):
            raise ValueError(f"{kind.__name__} and other values do not mix, but {item!r} is among them")
    parts = [item.encode() if kind is str else item for item in items]
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    data = bytearray(b"".join(parts))
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return Ragged.trusted(flat, offsets_of(lengths), text)
