"""Tables with a bit of everything that the interpreter is done with soon."""

from __future__ import annotations

from typing import Any

from tests.parallel import standard
from tests.parallel.training_case import Case, Spec

TABLES: list[Spec] = [
    {"name": "hashed", "dim": 4, "hashes": [2, 5], "combiner": "mean"},
    {"name": "wide", "dim": 5, "rows": 9, "combiner": "sqrtn", "out_of_range": "hash"},
    {
        "name": "item",
        "dim": 4,
        "rows": 7,
        "features": ["item", "history", "liked"],
        "combiner": {"item": "sum", "history": "none", "liked": "mean"},
    },
    {"name": "few", "dim": 4, "rows": 3, "combiner": "max", "out_of_range": "zero"},
]
HOT: dict[str, int | None] = {"item": 1, "few": 2}
SIZES = [[[3, 0, 2]], [[1, 4, 1]]]


def case(world: int, scheme: str | None, *, tables: list[Spec] | None = None, **more: Any) -> Case:
    """These tables on the device under test, all placed by one scheme."""
    given = {"sizes": standard.sizes(world, SIZES), "hot": HOT, "longest": 3, **more}
    return standard.case(world, scheme, tables=TABLES if tables is None else tables, on_device=True, **given)
