"""Random mixes of schemes, tables, batches and optimizers: N ranks equal one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.parallel.drawn import cases
from tests.parallel.equality import check
from tests.parallel.training_case import Case

FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(case=cases(2, most_tables=5))
def test_two_ranks_equal_one_whatever_the_mix(case: Case) -> None:
    check(case)


@FEW
@given(case=cases(3, most_tables=5))
def test_three_ranks_equal_one_whatever_the_mix(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "examples"), [(1, 25), (2, 120), (3, 120), (4, 80), (8, 40)])
def test_many_mixes_equal_one_rank(world: int, examples: int) -> None:
    search = settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    search(given(case=cases(world))(check_once))()


def check_once(case: Case) -> None:
    check(case)
