"""Dynamic tables divided over GPUs: ids are let in, counted and dated as in one process on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.gpu import small
from tests.parallel.training_case import Case, Spec

pytestmark = needs_gpu

USERS: Spec = {"name": "user", "dim": 4, "capacity": 200, "features": ["user", "friends"], "combiner": "sum"}
WORDS: Spec = {"name": "word", "dim": 5, "capacity": 300, "features": ["word", "words"], "combiner": {"word": "max", "words": "none"}}
HOT: dict[str, int | None] = {"item": 1, "user": 2, "word": 1}


def case(world: int, scheme: str, tables: list[Spec] | None = None, **more: Any) -> Case:
    """Dynamic tables of a few ids beside a fixed one, with slots that grow."""
    given = {"tables": tables or [USERS, small.TABLES[2], WORDS], "hot": HOT, "sizes": standard.sizes(world), **more}
    return small.case(world, scheme, **given)


@pytest.mark.parametrize("scheme", ["table", "row"])
def test_dynamic_tables_over_ranks_equal_one_process(scheme: str) -> None:
    check(case(2, scheme))
