"""Asking: what a rank asks for in every block: the order of keys of ids, and what lines say of tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.ops.id_routes.lines import POLICIES, of
from hybridrec.ops.id_routes.triton import IDS, Segments
from hybridrec.parallel.gpu.beside import Beside
from hybridrec.parallel.routes import Part, Routes, counts
from hybridrec.types import IdBlock

MOST_SHAPES = 64


class Segment(NamedTuple):
    """Keys of one unit of rows on one rank; those of tables that every rank has come after all ranks."""

    place: int  # of its width
    rank: int  # `world` for copied tables
    unit: int
    holder: int  # number of the rank among those that hold the unit
    size: int  # rows, or numbers that ids of a dynamic table may have


@dataclass(frozen=True, eq=False)
class Shape:
    """A block's shape as routing sees it; nothing in it depends on the ids."""

    lines: Tensor
    first_programs: Tensor
    programs: int
    spans: tuple[tuple[int, int], ...]  # of each feature's ids in the block
    starts: list[int]  # of each asked part's positions, and their end
    bag_starts: list[int]  # of each bag part's ids, and their end
    feature_starts: Tensor  # int64 [F]
    numbered: list[tuple[int, int]]  # spans of ids that get numbers: those of dynamic tables, each of them asked once


class Asking:
    """The parts of a lookup that ask for rows, and those that send bags, in the order of their holders."""

    def __init__(self, routes: Routes, tables: Mapping[str, Table], beside: Beside) -> None:
        self.routes, self._beside = routes, beside
        parts = list(enumerate(routes.parts))
        self.parts = [p for p, part in parts if part.kind != "bags"]
        self.bags = sorted((p for p, part in parts if part.kind == "bags"), key=lambda p: _holder(routes.parts[p]))
        self.segments = self._ordered(tables)
        self.first_of = self._borders()
        self.keys = self._keys()
        asked = [tables[routes.parts[p].piece.table] for p in self.parts]
        self._once = [n for n, table in enumerate(asked) if table.dynamic and not counts(table)]
        self._known = np.array([self._line(routes.parts[p], tables) for p in (*self.parts, *self.bags)], np.int64)
        self._shapes: dict[object, Shape] = {}

    def _ordered(self, tables: Mapping[str, Table]) -> list[Segment]:
        routes, found = self.routes, []
        for u, unit in enumerate(routes.rows.units):
            table, holders, place = tables[unit.piece.table], unit.piece.holders, int(routes.rows.classes[u])
            shares = [Share(h, len(holders)) for h in range(len(holders))]
            sizes = [of.MOST_NUMBERS if table.dynamic else share.rows_of(table.fixed_rows) for share in shares]
            found += [Segment(place, rank, u, h, sizes[h]) for h, rank in enumerate(holders)]
        for u, unit in enumerate(routes.copied.units):
            rows = tables[unit.piece.table].fixed_rows
            found.append(Segment(int(routes.copied.classes[u]), routes.world, u, 0, rows))
        return sorted(found)

    def _borders(self) -> np.ndarray:
        """The first segment of each width and rank, int64 [widths, world + 2]; the last rank is for copied tables."""
        at = [(each.place, each.rank) for each in self.segments]
        wanted = [(c, r) for c in range(len(self.routes.widths)) for r in range(self.routes.world + 2)]
        made = [sum(one < want for one in at) for want in wanted]
        return np.array(made, np.int64).reshape(-1, self.routes.world + 2)

    def _keys(self) -> Segments:
        ends = np.concatenate([[0], np.cumsum([each.size for each in self.segments])]).astype(np.int64)
        bases = np.zeros(len(self.segments), np.int64)
        self._first_base: dict[tuple[bool, int], int] = {}
        numbered = sorted(enumerate(self.segments), key=lambda each: _base_order(each[1], self.routes.world))
        for place, (number, each) in enumerate(numbered):
            bases[place] = ends[number]
            self._first_base.setdefault((each.rank == self.routes.world, each.unit), place)
        firsts = np.minimum(self.first_of[:, 0], len(self.segments))
        there = [self._there(torch.from_numpy(part)) for part in (bases, ends, firsts)]
        return Segments(*there, end=int(ends[-1]))

    def _line(self, part: Part, tables: Mapping[str, Table]) -> tuple[int, ...]:
        table = tables[part.piece.table]
        known = (0, of.ANY) if table.dynamic else (table.fixed_rows, POLICIES[table.out_of_range or "error"])
        if part.kind == "bags":
            return (0, 0, 0, *known, 1, of.NOT_ASKED, part.feature, of.EVERY)
        holders = 1 if part.kind == "copied" else len(part.piece.holders)
        first = self._first_base[part.kind == "copied", part.unit]
        return (0, 0, 0, *known, holders, first, part.feature, of.EVERY)

    def shape(self, block: IdBlock, pick: tuple[int, ...]) -> Shape:
        """How blocks of this shape are read."""
        kind = block.names, block.starts
        found = self._shapes.get(kind)
        if found is None:
            if len(self._shapes) >= MOST_SHAPES:  # ragged blocks are all different
                self._shapes.clear()
            found = self._shapes[kind] = self._shape(block, pick)
        return found

    def _shape(self, block: IdBlock, pick: tuple[int, ...]) -> Shape:
        routes = self.routes
        spans = tuple((block.starts[at], block.starts[at + 1]) for at in pick)
        mine = [spans[routes.parts[p].feature] for p in (*self.parts, *self.bags)]
        sizes = np.array([last - first for first, last in mine], np.int64).reshape(-1)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        made = self._known.copy().reshape(-1, of.LENGTH)
        made[:, of.START], made[:, of.COUNT] = [first for first, _ in mine], sizes
        made[:, of.TO] = ends[:-1]
        made[self._once, of.NUMBERS] = np.cumsum(sizes[self._once]) - sizes[self._once]
        programs = np.concatenate([[0], np.cumsum(-(-sizes // IDS))])
        asked = len(self.parts)
        return Shape(
            self._there(torch.from_numpy(made)),
            self._there(torch.from_numpy(programs.astype(np.int32))),
            int(programs[-1]),
            spans,
            ends[: asked + 1].tolist(),
            ends[asked:].tolist(),
            self._there(torch.tensor([first for first, _ in spans])),
            [mine[n] for n in self._once],
        )

    def _there(self, numbers: Tensor) -> Tensor:
        return self._beside.sent(numbers)


def _holder(part: Part) -> tuple[int, int]:
    return part.piece.holders[0], part.unit


def _base_order(each: Segment, world: int) -> tuple[bool, int, int]:
    return each.rank == world, each.unit, each.holder
