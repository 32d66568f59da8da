"""Ranks with fewer rows, no rows, or no ids: nobody hangs, and each row counts once."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.equality import check


@pytest.mark.parametrize("scheme", standard.ANY)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([[[7, 0]], [[0, 3]], [[1, 2]]], id="one rank is empty"),
        pytest.param([[[2, 2]], [[0, 0]], [[3, 1]]], id="all are empty once"),
        pytest.param([[[9, 1]], [[1, 9]]], id="very uneven"),
    ],
)
def test_a_row_counts_the_same_on_whatever_rank_it_is(scheme: str, sizes: list[list[list[int]]]) -> None:
    check(standard.case(2, scheme, sizes=sizes, optimizer="Adam", options={"lr": 0.05, "eps": 1e-3}, clip=0.5))


@pytest.mark.parametrize("scheme", standard.ANY)
@pytest.mark.parametrize("idless", [[0], *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in ([1], [0, 1]))])
def test_a_rank_whose_lists_are_all_empty_takes_part(scheme: str, idless: list[int]) -> None:
    check(standard.case(2, scheme, hot={}, idless=idless))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_features_without_any_id_on_any_rank_give_zeros_and_no_update(scheme: str) -> None:
    check(standard.case(2, scheme, hot={"item": 0, "user": 0, "one": 0, "few": 0}))


@pytest.mark.parametrize("sizes", [[[[2, 2], [0, 0]], [[0, 0], [1, 4]]], [[[0, 3], [3, 0]], [[1, 0], [2, 2]]]])
def test_empty_batches_among_accumulated_ones_take_nothing_away(sizes: list[list[list[int]]]) -> None:
    check(standard.case(2, "row", sizes=sizes))
