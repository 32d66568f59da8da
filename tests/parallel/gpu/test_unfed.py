"""Rows that only an unused output has asked for keep still on GPUs too."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel.equality import compare_stores
from tests.parallel.jobs import unfed
from tests.parallel.pool import pool

pytestmark = needs_gpu

SLOW = [("table", False), ("row", False), ("column", False), ("table", True)]  # schemes, and whether it is dynamic


@pytest.mark.parametrize(
    ("scheme", "dynamic"),
    [("row", True), ("replicated", False), *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_rows_without_a_gradient_do_not_move_though_others_of_their_table_do(scheme: str, dynamic: bool) -> None:
    found = pool(2).run("tests.parallel.jobs.unfed:trained", scheme=scheme, on_device=True, dynamic=dynamic)
    compare_stores(found, unfed.trained_alone(dynamic), 1e-5, "rows")
