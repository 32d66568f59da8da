"""Tables that have a bit of everything, and plans that place all of them alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parallel.training_case import Case, Spec

TABLES: list[Spec] = [
    {
        "name": "item",
        "dim": 8,
        "rows": 12,
        "features": ["item", "history", "liked"],
        "combiner": {"item": "sum", "history": "none", "liked": "mean"},
    },
    {"name": "few", "dim": 3, "rows": 2, "combiner": "max"},
    {"name": "wide", "dim": 17, "rows": 40, "combiner": "sqrtn", "out_of_range": "hash"},
    {"name": "one", "dim": 4, "rows": 1, "combiner": "sum", "out_of_range": "zero"},
    {"name": "hashed", "dim": 4, "hashes": [2, 9], "combiner": "mean"},
    {"name": "user", "dim": 4, "capacity": 200, "features": ["user", "friends"], "combiner": "sum"},
]
SCHEMES = ("replicated", "table", "row", "column")
ANY = ("mixed", *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in SCHEMES))  # one by one takes its time
HOT: dict[str, int | None] = {"item": 1, "few": 3, "user": 1}
EVEN = [[[4, 4, 4, 4, 4, 4, 4, 4]]] * 3
UNEVEN = [[[4, 1, 3, 0, 2, 5, 1, 1]], [[0, 6, 2, 2, 3, 0, 0, 1]], [[3, 3, 0, 1, 1, 2, 4, 4]]]


def sizes(world: int, rows: list[list[list[int]]] = UNEVEN) -> list[list[list[int]]]:
    """The rows of the first ranks."""
    return [[micro[:world] for micro in step] for step in rows]


def placed(spec: Spec, scheme: str, world: int, at: int = 0) -> Spec:
    """The placement of the `at`-th table by this scheme, or by rows where it cannot have it; "mixed" takes turns."""
    scheme = SCHEMES[at % len(SCHEMES)] if scheme == "mixed" else scheme
    made: Spec = {"table": spec["name"], "scheme": scheme, "devices": list(range(world))}
    if scheme == "table":
        return made | {"devices": [at % world]}
    if scheme == "column" and not spec.get("capacity"):
        count = min(world, spec["dim"])
        widths = [spec["dim"] // count + (n < spec["dim"] % count) for n in range(count)]
        return made | {"devices": list(range(count)), "columns": widths}
    return made | {"scheme": "row" if spec.get("capacity") else scheme}


def case(world: int, scheme: str | None, *, tables: list[Spec] | None = None, **more: Any) -> Case:
    """The standard tables, all placed by one scheme; by what `hr.shard` chooses where it is None."""
    tables = TABLES if tables is None else tables
    placements = None if scheme is None else [placed(spec, scheme, world, n) for n, spec in enumerate(tables)]
    given: dict[str, Any] = {"placements": placements, "sizes": sizes(world), "hot": HOT, **more}
    return Case(tables=tables, **given)
