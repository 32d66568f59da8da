"""Dynamic tables over ranks: ids are let in, counted and dated as in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.pool import pool

FAULTS = "tests.parallel.jobs.faults"


def users(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "user", "dim": 4, "capacity": 300, "features": ["user", "friends"], "combiner": "sum", **more}]


@pytest.mark.parametrize("scheme", ["table", "row"])
@pytest.mark.parametrize("eviction", ["lru", "lfu", None])
def test_scores_that_eviction_goes_by_are_those_of_one_process(scheme: str, eviction: str | None) -> None:
    check(standard.case(2, scheme, tables=users(eviction=eviction), hot={"user": 2}))


@pytest.mark.parametrize("scheme", ["table", "row"])
@pytest.mark.parametrize("admission", [["probability", 0.5], ["min_count", 3]])
def test_ids_are_let_in_as_in_one_process(scheme: str, admission: list[Any]) -> None:
    check(standard.case(2, scheme, tables=users(admission=admission), hot={"user": 2}))


@pytest.mark.parametrize("scheme", ["table", "row"])
def test_weights_of_ids_whose_rows_expire_before_the_backward_call_learn_as_in_one_process(scheme: str) -> None:
    tables = [*users(trainable=False, eviction=1), {"name": "item", "dim": 4, "rows": 9, "combiner": "sum"}]
    check(standard.case(2, scheme, tables=tables, hot={"user": 2, "item": 1}, learned=True, lookups=2))


@pytest.mark.parametrize("scheme", ["table", "row"])
def test_a_table_that_is_full_is_named_and_all_ranks_are_told(scheme: str) -> None:
    case = standard.case(2, scheme, tables=users(capacity=4), hot={"user": 4})
    found = pool(2).run(f"{FAULTS}:full", case=case.to_json())
    assert all("table 'user'" in each["text"] or "rank 0" in each["text"] for each in found), found
    assert found[0]["kind"] == "ValueError"
    assert "larger capacity" in found[0]["text"]


@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_a_crowded_table_stays_within_its_capacity_and_each_id_on_its_rank(eviction: str) -> None:
    found = pool(2).run("tests.parallel.jobs.sharding:crowded", capacity=60, eviction=eviction)
    assert all(each["owned"] and each["finite"] for each in found)
    assert 40 <= sum(each["count"] for each in found) <= 60
    assert not set(found[0]["ids"].tolist()) & set(found[1]["ids"].tolist())
