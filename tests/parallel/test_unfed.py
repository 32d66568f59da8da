"""Rows that only an unused output has asked for keep still, on many ranks as in one process."""

from __future__ import annotations

import pytest

from tests.parallel.equality import compare_stores
from tests.parallel.jobs import unfed
from tests.parallel.pool import pool


@pytest.mark.parametrize("scheme", ["row", "table", "replicated", "column"])
def test_rows_without_a_gradient_do_not_move_though_others_of_their_table_do(scheme: str) -> None:
    found = pool(2).run("tests.parallel.jobs.unfed:trained", scheme=scheme)
    compare_stores(found, unfed.trained_alone(), 1e-5, "rows")


@pytest.mark.parametrize("scheme", ["row", "table"])
def test_so_do_those_of_dynamic_tables(scheme: str) -> None:
    found = pool(2).run("tests.parallel.jobs.unfed:trained", scheme=scheme, dynamic=True)
    compare_stores(found, unfed.trained_alone(dynamic=True), 1e-5, "rows")
