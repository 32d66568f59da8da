"""Cases in which other libraries went wrong, and plans that theirs make."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.training_case import Case, Spec


def specs(sizes: list[list[int]], combiner: str = "sum") -> list[Spec]:
    """Tables by rows and dim."""
    return [{"name": f"t{n}", "rows": rows, "dim": dim, "combiner": combiner} for n, (rows, dim) in enumerate(sizes)]


def on_ranks(ranks: list[list[int]]) -> list[Spec]:
    """Whole tables by the rank that holds them."""
    return [
        {"table": f"t{table}", "scheme": "table", "devices": [rank]}
        for rank, tables in enumerate(ranks)
        for table in tables
    ]


def columns(table: int, devices: list[int], widths: list[int]) -> Spec:
    return {"table": f"t{table}", "scheme": "column", "devices": devices, "columns": widths}


SEVEN = [[11, 7], [5, 8], [3, 8], [5, 8], [12, 25], [3, 12], [7, 13]]


@pytest.mark.parametrize(
    "ranks",
    [[[0, 3, 6], [1, 4], [2, 5]], [[4, 2, 5], [6, 1], [0, 3]], [[0, 3, 5], [6, 1, 2], [4]]],
    ids=["basic", "memory_balanced", "memory_optimized"],
)
def test_golden_plans_of_seven_tables_on_three_ranks_train_alike(ranks: list[list[int]]) -> None:
    check(Case(tables=specs(SEVEN), placements=on_ranks(ranks), sizes=standard.sizes(3)))


@pytest.mark.slow
def test_a_golden_plan_of_slices_on_four_ranks_trains_alike() -> None:
    placements = [
        columns(0, [0, 1, 2, 3], [2, 2, 2, 2]),
        {"table": "t1", "scheme": "table", "devices": [1]},
        columns(2, [2, 3], [4, 4]),
        columns(3, [0, 1, 2], [2, 1, 1]),
    ]
    tables = specs([[100, 8], [5, 8], [10, 8], [25, 4]])
    check(Case(tables=tables, placements=placements, sizes=standard.sizes(4)))


@pytest.mark.slow
@pytest.mark.parametrize("widths", [[2, 2, 1, 1], [3, 1, 1, 1]])
def test_slices_of_uneven_width_train_alike(widths: list[int]) -> None:
    check(Case(tables=specs([[16, 6]]), placements=[columns(0, [0, 1, 2, 3], widths)], sizes=standard.sizes(4)))


def test_slices_of_a_table_that_features_share_go_to_the_right_outputs() -> None:
    tables = specs([[15, 7], [23, 4]])
    tables[1] |= {"features": ["t1", "again", "more"], "combiner": {"t1": "sum", "again": "mean", "more": "none"}}
    placements = [columns(0, [1, 0], [4, 3]), columns(1, [1, 0], [1, 3])]
    check(Case(tables=tables, placements=placements, sizes=standard.sizes(2)))


def test_uneven_slices_in_another_order_than_the_ranks_train_alike() -> None:
    placements = [columns(0, [2, 0], [3, 2]), columns(1, [1, 2, 0], [5, 10, 1])]
    check(Case(tables=specs([[12, 5], [26, 16]], "mean"), placements=placements, sizes=standard.sizes(3)))


def test_fixed_and_ragged_features_stay_in_their_order() -> None:
    tables = specs([[10, 4]] * 5)
    placements = on_ranks([[1, 3], [0, 2, 4]])
    check(Case(tables=tables, placements=placements, sizes=standard.sizes(2), hot={"t1": 2, "t3": 1, "t4": 3}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_as_many_ids_as_rows_with_empty_bags_among_them_is_not_one_id_per_row(scheme: str) -> None:
    tables = specs([[10, 4], [6, 3]], "mean")
    for seed in range(2):
        check(standard.case(2, scheme, tables=tables, sizes=[[[2, 2]]] * 2, longest=2, hot={}, seed=seed))


def test_a_mix_of_replicated_sliced_and_dealt_out_tables_with_a_shared_one_trains_alike() -> None:
    tables = specs([[10, 4], [50, 16], [500, 8], [50, 16]])
    tables[1] |= {"features": ["t1", "fifth"]}
    placements = [
        {"table": "t0", "scheme": "replicated", "devices": [0, 1]},
        columns(1, [0, 1], [8, 8]),
        {"table": "t2", "scheme": "row", "devices": [0, 1]},
        {"table": "t3", "scheme": "table", "devices": [1]},
    ]
    check(Case(tables=tables, placements=placements, sizes=standard.sizes(2)))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("scheme", ["row", "table"])
def test_fewer_rows_and_tables_than_ranks_leave_some_ranks_without_any(world: int, scheme: str) -> None:
    check(standard.case(world, scheme, tables=specs([[1, 4]]), hot={}))


def test_a_dynamic_table_on_one_rank_grows_by_the_ids_of_all() -> None:
    table = {"name": "user", "dim": 4, "capacity": 300, "combiner": "sum"}
    found = check(standard.case(3, "table", tables=[table], hot={}))
    assert [len(each["final"]["user"]["ids"]) > 0 for each in found] == [True, False, False]
