"""Routes: how the features of a lookup travel between ranks. Made once per lookup; nothing in it changes with batches.

A unit is what travels together: the distinct ids of a piece of a table, however many features ask for it ("rows", or
"copied" where every rank has them), or the bags of one feature for the holder of a piece ("bags"). Units are in the
order of their width, so that vectors of one width lie side by side in a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hybridrec import _native
from hybridrec.embedding.policies import LFU, MinCount
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.embedding.table import Table
from hybridrec.parallel.schemes import Piece


@dataclass(frozen=True)
class Unit:
    """A piece, and the features (by number) that ask for it."""

    piece: Piece
    features: tuple[int, ...]


class Part(NamedTuple):
    """A feature's columns from one piece: the kind of its unit ("rows", "copied", "bags") and the number of it."""

    feature: int
    piece: Piece
    kind: str
    unit: int


class Units:
    """Units of one kind, with their numbers as arrays."""

    def __init__(self, units: Sequence[Unit], widths: Sequence[int], world: int) -> None:
        self.units = tuple(sorted(units, key=lambda unit: unit.piece.width))
        self.widths = np.array([unit.piece.width for unit in self.units], dtype=np.int64)
        self.classes = np.searchsorted(np.array(widths), self.widths) if len(widths) else self.widths
        self.held = [
            np.array([u for u, unit in enumerate(self.units) if rank in unit.piece.holders], dtype=np.int64)
            for rank in range(world)
        ]
        self.class_ends = np.searchsorted(self.classes, np.arange(len(widths)), side="right")

    def __len__(self) -> int:
        return len(self.units)

    def of(self, piece: Piece, feature: int) -> int:
        """The number of the unit with this piece and feature."""
        return next(u for u, unit in enumerate(self.units) if unit.piece == piece and feature in unit.features)


class Routes:
    """The units and parts of a lookup, seen from one rank. With `pooling`, holders pool bags where they can."""

    def __init__(
        self,
        features: Sequence[FeatureSpec],
        pieces: Mapping[str, Sequence[Piece]],
        tables: Mapping[str, Table],
        rank: int,
        world: int,
        pooling: bool = True,
    ) -> None:
        self.features, self.rank, self.world = tuple(features), rank, world
        self.marked = not any(piece.served for parts in pieces.values() for piece in parts)  # servers tell faults apart
        counting = {name for name, table in tables.items() if counts(table)}
        pieces = {name: [_piece(piece, name in counting) for piece in parts] for name, parts in pieces.items()}
        kinds = _units(self.features, pieces, pooling)
        self.apart = any(len(pieces[feature.table]) > 1 for feature in self.features)  # whether columns of a table are
        self.widths = tuple(sorted({unit.piece.width for units in kinds.values() for unit in units}))
        self.rows, self.copied, self.bags = (Units(kinds[k], self.widths, world) for k in ("rows", "copied", "bags"))
        self.parts = [
            self._part(number, piece, pooling)
            for number, feature in enumerate(self.features)
            for piece in pieces[feature.table]
        ]
        targets = [_target(unit, tables, None) for unit in self.rows.units]
        targets += [_target(unit, tables, rank) for unit in self.copied.units]
        self.router = _native.Router(targets, world)
        self.asked = [  # target, feature: in the order in which the router is asked
            (target, number)
            for target, unit in enumerate((*self.rows.units, *self.copied.units))
            for number in unit.features
        ]
        self.checked = [  # features that go to holders as they are, and the rows that their ids must be among
            (number, tables[feature.table].fixed_rows)
            for number, feature in enumerate(self.features)
            if tables[feature.table].out_of_range == "error"
            and any(part.kind == "bags" and part.feature == number for part in self.parts)
        ]

    def _part(self, number: int, piece: Piece, pooling: bool) -> Part:
        kind = kind_of(self.features[number], piece, pooling)
        return Part(number, piece, kind, getattr(self, kind).of(piece, number))

    def padding(self, unit: Unit) -> int | None:
        """The id of a unit whose row takes no gradient."""
        found = {self.features[number].padding for number in unit.features}
        return found.pop() if len(found) == 1 else None


def counts(table: Table) -> bool:
    """Whether it matters how often an id comes: each occurrence then travels, and all are seen before one is pooled."""
    return isinstance(table.eviction, LFU) or (isinstance(table.admission, MinCount) and table.admission.k > 1)


def _piece(piece: Piece, counting: bool) -> Piece:
    return replace(piece, pools=False) if counting else piece


def kind_of(feature: FeatureSpec, piece: Piece, pooling: bool) -> str:
    """How a feature gets its vectors from a piece."""
    if piece.copied:
        return "copied"
    return "bags" if pooling and piece.pools and feature.combiner != "none" else "rows"


def _units(
    features: Sequence[FeatureSpec], pieces: Mapping[str, Sequence[Piece]], pooling: bool
) -> dict[str, list[Unit]]:
    """All units by kind. Features of one table ask for its rows together."""
    asking: dict[tuple[str, Piece], list[int]] = {}
    found: dict[str, list[Unit]] = {"rows": [], "copied": [], "bags": []}
    for number, feature in enumerate(features):
        for piece in pieces[feature.table]:
            kind = kind_of(feature, piece, pooling)
            if kind == "bags":
                found["bags"].append(Unit(piece, (number,)))
            else:
                asking.setdefault((kind, piece), []).append(number)
    for (kind, piece), numbers in asking.items():
        found[kind].append(Unit(piece, tuple(numbers)))
    return found


def _target(unit: Unit, tables: Mapping[str, Table], alone: int | None) -> tuple[int, str, list[int], bool, bool]:
    """What the router knows of a table; `alone` is the rank that answers itself."""
    table = tables[unit.piece.table]
    holders = list(unit.piece.holders) if alone is None else [alone]
    rows = -1 if table.dynamic else table.fixed_rows
    return rows, table.out_of_range or "error", holders, counts(table), unit.piece.served
