"""Ids routed on the GPU: those of the plain code, whatever tables, holders and policies there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.id_routes import reference
from hybridrec.ops.id_routes import triton as routes
from hybridrec.ops.id_routes.lines import of
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

STRANGE = [-1, -(2**63), 2**63 - 1, NO_ID]


class Given(NamedTuple):
    """What is routed."""

    values: Tensor
    lines: Tensor
    room: tuple[int, int, int]
    order: routes.Segments

    def shifted(self, by: int) -> Given:
        """The same with keys that are larger by so much."""
        s = self.order
        return self._replace(order=routes.Segments(s.bases + by, s.borders + by, s.firsts, s.end + by))


def segments(units: Sequence[tuple[int, int, int]]) -> tuple[list[int], routes.Segments]:
    """The order of keys for units of (rows, holders, class), and where the bases of each unit begin."""
    parts = [
        (kind, rank, unit, (rows - rank + holders - 1) // holders)
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


def given(seed: int, faulty: bool) -> Given:
    """Lines of several units on three ranks, some of which ask for the same units, and ids with strangers."""
    torch.manual_seed(seed)
    units = [(7, 2, 0), (1, 1, 0), (40, 3, 1)]  # rows, holders and class of each
    bases, order = segments([(rows, holders, kind) for rows, holders, kind in units])
    lines, values, to = [], [], 0
    for feature, unit in enumerate([0, 2, 1, 0, None]):
        rows, holders, _ = units[unit or 0]
        count, policy = int(torch.randint(0, 60, ())), feature % 3
        ids = torch.randint(0, rows, (count,))
        if policy != of.ERROR or faulty:
            ids[torch.rand(count) < 0.2] = torch.tensor(STRANGE)[torch.randint(0, 4, ())]
        first = of.NOT_ASKED if unit is None else bases[unit]
        lines.append([sum(map(len, values)), count, to, rows, policy, 1 if unit is None else holders, first, feature])
        values.append(ids)
        to += count
    asked = lines[-1][of.TO]
    return Given(torch.cat(values), torch.tensor(lines), (asked, to - asked, len(lines)), order)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wide", [False, True], ids=["keys of 32 bits", "keys of 64 bits"])
def test_routing_agrees_with_the_plain_code(seed: int, wide: bool) -> None:
    made = given(seed, faulty=seed == 0)
    if wide:
        made = made.shifted(2**33)
    found, expected = run(made), reference.route(*made)
    count = int(expected.ends[-1])
    assert torch.equal(found.ends.cpu(), expected.ends)
    assert torch.equal(found.faults.cpu(), expected.faults)
    assert torch.equal(found.positions.cpu(), expected.positions)
    assert torch.equal(found.distinct[:count].cpu(), expected.distinct)
    assert torch.equal(found.rows.cpu(), expected.rows)


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
    first = programs.to(torch.int32).to(DEVICE)
    return routes.route(made.values.to(DEVICE), made.lines.to(DEVICE), first, int(programs[-1]), made.room, there)
