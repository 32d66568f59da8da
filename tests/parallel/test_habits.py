"""What programs do around a backward pass, on ranks as in one process."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.jobs.habits import HABITS

ADAM = {"optimizer": "Adam", "options": {"lr": 0.05, "eps": 1e-3}}


@pytest.mark.parametrize("habit", [habit for habit in HABITS if habit])
@pytest.mark.parametrize("scheme", standard.ANY)
def test_what_a_program_does_beside_the_usual_comes_out_alike(habit: str, scheme: str) -> None:
    sizes = [[[4, 2]], [[1, 3]], [[2, 2]]] if habit != "mean of nothing" else [[[4, 0]], [[0, 3]]]
    check(standard.case(2, scheme, habit=habit, sizes=sizes, **ADAM))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_weights_that_ranks_state_decide_what_their_rows_count(scheme: str) -> None:
    check(standard.case(2, scheme, weighs=True, **ADAM))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_tables_that_are_not_trained_are_looked_up_and_stay(scheme: str) -> None:
    tables = [spec | {"trainable": spec["name"] not in ("item", "wide")} for spec in standard.TABLES]
    found = check(standard.case(2, scheme, tables=tables, **ADAM))
    assert "item" not in found[0]["counts"]


@pytest.mark.parametrize("scheme", standard.ANY)
def test_tables_have_values_of_their_own(scheme: str) -> None:
    check(standard.case(2, scheme, options={"lr": 0.2, "overrides": {"item": {"lr": 0.1}, "user": {"momentum": 0.5}}}))
