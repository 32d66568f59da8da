"""Batches large enough for several threads and many messages, and many tables."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.training_case import Spec

MANY: list[Spec] = [
    {"name": f"t{n}", "dim": (4, 8, 16, 17)[n % 4], "rows": 50 + 37 * n, "combiner": ("sum", "mean", "none")[n % 3]}
    for n in range(30)
]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("scheme", ["mixed", *standard.SCHEMES])
def test_large_batches_on_several_threads_end_where_one_process_does(scheme: str, world: int) -> None:
    sizes = [[[300, 500, 200][:world]]] * 3
    adam = {"optimizer": "Adam", "options": {"lr": 0.01, "eps": 1e-3}}
    check(standard.case(world, scheme, sizes=sizes, longest=20, threads=3, **adam))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mixed", *standard.SCHEMES])
def test_many_tables_end_where_one_process_does(scheme: str) -> None:
    check(standard.case(2, scheme, tables=MANY, sizes=[[[60, 40]]] * 3, threads=2, hot={"t1": 5, "t4": 1}))
