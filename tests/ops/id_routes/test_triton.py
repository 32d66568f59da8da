"""Ids routed on the GPU: those of the plain code, whatever tables, holders and policies there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.ops.id_routes import reference
from hybridrec.ops.id_routes import triton as routes
from hybridrec.ops.id_routes.lines import of
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

ANY = of.MOST_NUMBERS
STRANGE = [-1, -(2**63), 2**63 - 1, NO_ID]


class Given(NamedTuple):
    """What is routed."""

    values: Tensor
    lines: Tensor
    room: tuple[int, int, int]
    order: routes.Segments
    numbers: Tensor

    def shifted(self, by: int) -> Given:
        """The same with keys that are larger by so much."""
        s = self.order
        return self._replace(order=routes.Segments(s.bases + by, s.borders + by, s.firsts, s.end + by))


def segments(units: Sequence[tuple[int, int, int]]) -> tuple[list[int], routes.Segments]:
    """The order of keys for units of (rows, holders, class), and where the bases of each unit begin.

    Those of ANY rows have room for as many numbers with each holder.
    """
    parts = [
        (kind, rank, unit, ANY if rows == ANY else (rows - rank + holders - 1) // holders)
        for unit, (rows, holders, kind) in enumerate(units)
        for rank in range(holders)
    ]
    order = sorted(parts)
    borders = list(accumulate((size for *_, size in order), initial=0))
    key_of = {(unit, rank): border for (_, rank, unit, _), border in zip(order, borders, strict=False)}
    bases = [key_of[unit, rank] for unit, (_, holders, _) in enumerate(units) for rank in range(holders)]
    kinds = sorted({kind for _, _, kind in units})
    firsts = [next(n for n, part in enumerate(order) if part[0] == kind) for kind in kinds]
    begins = list(accumulate((holders for _, holders, _ in units), initial=0))[:-1]
    return begins, routes.Segments(torch.tensor(bases), torch.tensor(borders), torch.tensor(firsts), borders[-1])


UNITS = [(7, 2, 0), (1, 1, 0), (40, 3, 1), (ANY, 3, 0), (ANY, 2, 1)]  # rows, holders and class of each
EVERY = 4  # the unit of which each occurrence is asked for
FIXED = [(0, True), (2, True), (1, True), (0, True), (0, False)]  # units of features, and whether they are asked for
MIXED = [(3, True), *FIXED[:-1], (4, True), (3, True), (0, False), (3, False)]


def given(seed: int, faulty: bool, features: Sequence[tuple[int, bool]] = FIXED) -> Given:
    """Lines of several units on three ranks, some of which ask for the same units, and ids with strangers."""
    torch.manual_seed(seed)
    units = UNITS[: 1 + max(unit for unit, _ in features)]
    bases, order = segments(units)
    lines, values, runs, to = [], [], [], 0
    for feature, (unit, asked) in enumerate(features):
        rows, holders, _ = units[unit]
        count, policy = int(torch.randint(0, 60, ())), of.ANY if rows == ANY else feature % 3
        ids = torch.randint(-4, 4, (count,)) * 2**61 if rows == ANY else torch.randint(0, rows, (count,))
        if policy != of.ERROR or faulty:
            ids[torch.rand(count) < 0.2] = torch.tensor(STRANGE)[torch.randint(0, 4, ())]
        start, numbered = sum(map(len, values)), rows == ANY and asked and unit != EVERY
        begin = sum(last - first for first, last in runs) if numbered else of.EVERY
        of_ids = (holders, bases[unit]) if asked else (1, of.NOT_ASKED)
        lines.append([start, count, to, rows, policy, *of_ids, feature, begin])
        runs += [(start, start + count)] if numbered else []
        values.append(ids)
        to += count
    count, ids = next(line[of.TO] for line in lines if line[of.FIRST] == of.NOT_ASKED), torch.cat(values)
    return Given(ids, torch.tensor(lines), (count, to - count, len(lines)), order, routes.numbers_of(ids, runs))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["keys of 32 bits", "keys of 64 bits", "tables that take any id"])
def test_routing_agrees_with_the_plain_code(seed: int, kind: str) -> None:
    made = given(seed, faulty=seed == 0, features=MIXED if kind == "tables that take any id" else FIXED)
    if kind == "keys of 64 bits":
        made = made.shifted(2**33)
    found, expected = run(made), reference.route(*made)
    count = int(expected.ends[-1])
    assert torch.equal(found.ends.cpu(), expected.ends)
    assert torch.equal(found.faults.cpu(), expected.faults)
    assert torch.equal(found.positions.cpu(), expected.positions)
    assert torch.equal(found.distinct[:count].cpu(), expected.distinct)
    assert torch.equal(found.rows.cpu(), expected.rows)


def test_equal_ids_of_all_runs_have_one_number_and_others_have_others() -> None:
    ids = torch.tensor([3, -(2**63), 2**63 - 1, 3, 8, 2**63 - 1, -(2**63)], device=DEVICE)
    assert routes.numbers_of(ids, [(0, 4), (5, 7)]).tolist() == [1, 0, 2, 1, 2, 0]
    assert not len(routes.numbers_of(ids, []))


@pytest.mark.parametrize("every", [False, True])
def test_any_id_is_asked_of_the_share_that_owns_it_once_or_as_often_as_it_comes(every: bool) -> None:
    _, order = segments([(ANY, 3, 0)])
    ids = torch.tensor([5, -(2**63), 2**63 - 1, NO_ID, 5, 0, -1, 6, 7, 8, 6])
    line = torch.tensor([[0, len(ids), 0, ANY, of.ANY, 3, 0, 0, of.EVERY if every else 0]])
    numbers = routes.numbers_of(ids, [] if every else [(0, len(ids))])
    found = run(Given(ids, line, (len(ids), 0, 1), order, numbers))
    ends, asked = found.ends.tolist(), found.distinct.cpu()
    known = ids[ids != NO_ID]
    for share in range(3):
        mine = asked[ends[share] : ends[share + 1]]
        owned = known[Share(share, 3).owns(Table("user", 4, capacity=9), known)]
        assert mine.sort().values.tolist() == (owned.sort().values if every else owned.unique()).tolist()
    places = found.positions.cpu()
    assert torch.equal(asked[places[ids != NO_ID]], known)
    assert places[ids == NO_ID].tolist() == [NO_ID]


def test_no_ids_have_no_routes() -> None:
    made = given(1, faulty=False)
    lines = made.lines.clone()
    lines[:, [of.START, of.COUNT, of.TO]] = 0
    found = run(made._replace(values=made.values[:0], lines=lines, room=(0, 0, len(lines))))
    assert not found.ends.any()
    assert bool((found.faults == of.NO_FAULT).all())


def run(made: Given) -> routes.Routed:
    counts = made.lines[:, of.COUNT]
    programs = torch.nn.functional.pad(((counts + routes.IDS - 1) // routes.IDS).cumsum(0), (1, 0))
    there = made.order._replace(**{n: getattr(made.order, n).to(DEVICE) for n in ("bases", "borders", "firsts")})
    first, of_any = programs.to(torch.int32).to(DEVICE), made.numbers.to(DEVICE)
    of_lines = made.lines.to(DEVICE), first, int(programs[-1]), made.room
    return routes.route(made.values.to(DEVICE), *of_lines, there, of_any)
