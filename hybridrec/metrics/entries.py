"""Entries: rows kept for metrics that need them all, at 4 bytes a row (12 with groups), weights 8 more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridrec.metrics.rows import Rows

_JOIN_AT = 512  # parts before they become one


@dataclass(frozen=True, eq=False)
class Entries:
    """Columns of one length. A key is a score and a label in 31 bits: the bits of a float32 in [0, 1], then the label.

    Keys sort as scores do. Without `weights` each entry counts one.
    """

    keys: Tensor  # [n] int32
    weights: Tensor | None = None  # [n] float64
    groups: Tensor | None = None  # [n] int64

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def mass(self) -> Tensor:
        return torch.ones_like(self.keys, dtype=torch.float64) if self.weights is None else self.weights

    def to(self, device: torch.device | str) -> Entries:
        return self._map(lambda column: column.to(device))

    def where(self, kept: Tensor) -> Entries:
        """The entries where the mask `kept` [n] is true."""
        return self._map(lambda column: column[kept])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Entries:
        weights, groups = (None if column is None else change(column) for column in (self.weights, self.groups))
        return Entries(change(self.keys), weights, groups)

    def state(self) -> dict[str, Tensor]:
        """The columns by name; empty ones for those that are absent."""
        absent = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        weights, groups = (a if c is None else c for a, c in zip(absent, (self.weights, self.groups), strict=True))
        return {"keys": self.keys, "weights": weights, "groups": groups}


def entries_from(state: Mapping[str, Tensor]) -> Entries:
    """What `state` came from, with memory of its own."""
    columns = {name: state[name].clone() for name in ("keys", "weights", "groups")}
    size = len(columns["keys"])
    for name, dtype in {"keys": torch.int32, "weights": torch.float64, "groups": torch.int64}.items():
        column = columns[name]
        if column.dtype != dtype or column.dim() != 1 or len(column) not in (0, size):
            raise ValueError(f"{name} must be {dtype} [{size}] or empty, got {column.dtype} {list(column.shape)}")
    return Entries(columns["keys"], *(columns[name] if len(columns[name]) else None for name in ("weights", "groups")))


def key_of(bits: Tensor, positive: Tensor) -> Tensor:
    """A key from 30 bits that rise with the score, and the label."""
    return (bits << 1 | positive).int()


def entries_of(rows: Rows) -> Entries:
    """Rows as entries with memory of their own."""
    bits = rows.scores.float().view(torch.int32)  # the key has no place for a sign: -0.0 is 0.0
    weights, groups = (None if column is None else column.clone() for column in (rows.weights, rows.groups))
    return Entries(key_of(bits, rows.positive), weights, groups)


def joined(parts: Sequence[Entries]) -> Entries:
    """One of several, on the device of the last; weights where any part has them."""
    if not parts:
        return Entries(torch.zeros(0, dtype=torch.int32), None, torch.zeros(0, dtype=torch.int64))
    if len(parts) == 1:
        return parts[0]
    parts = [part.to(parts[-1].keys.device) for part in parts]
    weights = None if all(p.weights is None for p in parts) else torch.cat([p.mass for p in parts])
    groups = [p.groups for p in parts if p.groups is not None]
    return Entries(torch.cat([p.keys for p in parts]), weights, torch.cat(groups) if groups else None)


class EntryLog:
    """Entries that come in parts, in order; parts are joined now and then, none is ever changed."""

    def __init__(self, *parts: Entries) -> None:
        self._long: list[Entries] = [part for part in parts if len(part)]
        self._short: list[Entries] = []
        self.size = sum(map(len, self._long))

    def append(self, part: Entries) -> None:
        self._short.append(part)
        self.size += len(part)
        if len(self._short) >= _JOIN_AT:
            self._long.append(joined(self._short))
            self._short = []

    def all(self) -> Entries:
        """Everything as one part."""
        self._long, self._short = [joined(self._long + self._short)], []
        return self._long[0]
