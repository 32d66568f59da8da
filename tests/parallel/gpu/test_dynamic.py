"""Dynamic tables divided over GPUs: ids are let in, counted and dated as in one process on the CPU."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.equality import check, compare, compare_stores
from tests.parallel.gpu import small
from tests.parallel.jobs import exact, on_device, on_device_dynamic
from tests.parallel.pool import pool
from tests.parallel.training_case import Case, Spec

pytestmark = needs_gpu

JOBS = "tests.parallel.jobs.on_device_dynamic"
USER: Spec = {"name": "user", "dim": 4, "capacity": 200, "features": ["user", "friends"], "combiner": "sum"}
WORD: Spec = {"name": "word", "dim": 5, "capacity": 99, "combiner": {"word": "max", "words": "none"}}
WORD |= {"features": ["word", "words"]}
ITEM = small.TABLES[2]
HOT: dict[str, int | None] = {"item": 1, "user": 2, "word": 1}
OTHERS = [("table", "lru"), ("row", "lfu"), ("table", "lfu")]  # schemes and evictions


def case(world: int, scheme: str | list[str], tables: list[Spec] | None = None, **more: Any) -> Case:
    """Dynamic tables beside a fixed one; their slots grow."""
    tables = tables or [USER, ITEM, WORD]
    schemes = [scheme] * len(tables) if isinstance(scheme, str) else scheme
    pairs = enumerate(zip(tables, schemes, strict=True))
    placements = [standard.placed(spec, each, world, n) for n, (spec, each) in pairs]
    given = {"sizes": standard.sizes(world, small.SIZES), "hot": HOT, "placements": placements, **more}
    return small.case(world, None, tables=tables, **given)


def users(**more: Any) -> list[Spec]:
    return [{**USER, **more}]


def test_dynamic_tables_of_both_schemes_with_ids_that_go_ahead_equal_one_process() -> None:
    schemes = ["row", "replicated", "table"]
    check(case(2, schemes, ahead=True, optimizer="Adagrad", options={"lr": 0.1}))


def test_what_each_rank_counts_is_what_it_counts_on_a_cpu() -> None:
    counted_as_on_cpus(case(2, "row", users(admission=["min_count", 2], eviction="lfu")))


def counted_as_alone(case: Case) -> None:
    """The ranks equal one process, and count together what it counts: they hear of every occurrence of an id."""
    found, wanted = pool(case.world).run(f"{JOBS}:trained", case=case.to_json()), on_device_dynamic.trained_alone(case)
    compare(case, found, wanted)
    for name, counters in wanted["counters"].items():
        assert {key: sum(each["counters"][name][key] for each in found) for key in counters} == counters
    assert all(each["clocks"] == wanted["clocks"] for each in found), "ranks without a row count steps too"


def counted_as_on_cpus(case: Case) -> None:
    """Each rank counts what it counts on a CPU, where ids come once of each rank; all tell how many rows all have."""
    found = pool(case.world).run(f"{JOBS}:trained", case=case.to_json())
    there = pool(case.world).run(f"{JOBS}:trained", case=replace(case, on_device=False).to_json())
    compare(case, found, on_device_dynamic.trained_alone(case))
    for each, wanted in zip(found, there, strict=True):
        for name, counters in wanted["counters"].items():
            assert {key: each["counters"][name][key] for key in counters} == counters
            assert each["told"][name]["rows"] == sum(len(one["final"][name]["ids"]) for one in found)


def test_more_new_ids_than_there_is_room_for_are_told_to_all_and_no_row_is_lost() -> None:
    first, second = pool(2).run(f"{JOBS}:too_many")
    assert first["kind"] == "ValueError"
    assert re.search(r"rank 0: table 't0' holds 6 rows and \d more are needed.*larger capacity", first["text"])
    assert "rank 0 has ids that cannot be looked up" in second["text"]
    assert first["ids"] == [1, 2, 3]
    assert not first["lost"]
    for each in (first, second):
        torch.testing.assert_close(each["out"][0], first["kept"])


def test_gradients_that_come_late_change_the_rows_that_are_still_there_and_no_others() -> None:
    found, wanted = (pool(2).run(f"{JOBS}:late", on_device=on_device) for on_device in (True, False))
    assert sum(sum(each["dropped"]) for each in wanted) > 0
    for each, want in zip(found, wanted, strict=True):
        assert each["dropped"] == want["dropped"]
        for held, alike in zip(each["held"], want["held"], strict=True):
            assert held["ids"].tolist() == alike["ids"].tolist()
            torch.testing.assert_close(held["rows"], alike["rows"])
            torch.testing.assert_close(held["state"], alike["state"])


def test_a_rank_without_room_stops_all_at_one_lookup_where_batches_are_sent_ahead_too() -> None:
    first, second = pool(2).run(f"{JOBS}:too_many_ahead")
    assert "rank 1: table 't0' holds 3 rows" in second["text"]
    assert "rank 1 has ids that cannot be looked up" in first["text"]
    assert first["number"] == second["number"]
    assert not first["ids"]
    assert len(second["ids"]) == 2
    for each in (first, second):
        torch.testing.assert_close(each["out"], second["rows"])


@pytest.mark.parametrize(
    ("scheme", "eviction"), [("row", "lru"), *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_ids_may_be_any_numbers_and_rows_are_read_by_them(scheme: str, eviction: str) -> None:
    found = pool(2).run(f"{JOBS}:extremes", scheme=scheme, eviction=eviction)
    assert all(each["same"] for each in found), "rows by id are those of one process, zeros where there is none"
    assert sorted(id for each in found for id in each["ids"].tolist()) == sorted(on_device_dynamic.EXTREMES)


@pytest.mark.parametrize("eviction", ["lru", pytest.param("lfu", marks=pytest.mark.slow)])
def test_a_crowded_table_stays_within_its_capacity_and_each_id_on_its_rank(eviction: str) -> None:
    found, there = (
        pool(2).run(f"{JOBS}:crowded", capacity=30, eviction=eviction, on_device=on) for on in (True, False)
    )
    assert all(each["owned"] and each["finite"] and each["slots"] <= 15 for each in found)
    assert 24 <= sum(len(each["held"]["ids"]) for each in found) <= 30
    assert sum(each["evicted"] for each in found) > 0
    for each, want in zip(found, there, strict=True):
        same_rows(each["held"], want["held"])
        assert each["evicted"] == want["evicted"]


def same_rows(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The same ids with the same scores, rows and state."""
    for name in ("ids", "touched", "counts"):
        assert (found[name] is None) == (wanted[name] is None), name
        assert found[name] is None or found[name].tolist() == wanted[name].tolist(), name
    for name in ("rows", "state"):
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("eviction", ["lru", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lfu", 2))])
def test_rows_go_and_stay_as_in_one_process_where_one_rank_has_all_of_them(eviction: str | int) -> None:
    found, wanted = pool(2).run(f"{JOBS}:churned", eviction=eviction)[0], on_device_dynamic.churned(eviction, [0, 1])
    same_rows(found["held"], wanted["held"])
    assert wanted["counters"]["evicted"] > 0
    assert {name: found["counters"][name] for name in wanted["counters"]} == wanted["counters"]


@pytest.mark.parametrize("scheme", ["row", "table"])
def test_rows_that_a_collection_has_already_are_those_of_rank_0(scheme: str) -> None:
    found = pool(2).run(f"{JOBS}:divided", scheme=scheme)
    whole = found[0]["before"]
    parts = [pair for each in found for pair in zip(each["after"]["ids"].tolist(), each["after"]["rows"], strict=True)]
    rows = dict(parts)
    assert len(parts) == len(rows), "no id is on two ranks"
    assert sorted(rows) == whole["ids"].tolist()
    torch.testing.assert_close(torch.stack([rows[id] for id in sorted(rows)]), whole["rows"])
    for each in found:
        torch.testing.assert_close(each["out"], torch.stack([rows[1] + rows[9], rows[2]]))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "scheme"), [(1, "row"), (3, "table"), (3, "row")])
def test_every_scheme_of_dynamic_tables_equals_one_process(world: int, scheme: str) -> None:
    check(case(world, scheme))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "policy"),
    [
        ("table", {"eviction": "lfu"}),
        ("table", {"admission": ["probability", 0.5]}),
        ("row", {"admission": ["probability", 0.5]}),
        ("table", {"eviction": 1}),
        ("table", {"eviction": 2, "admission": ["min_count", 2]}),
    ],
    ids=str,
)
def test_ids_are_let_in_and_counted_as_on_cpus_whatever_the_policy(scheme: str, policy: Spec) -> None:
    made = case(2, scheme, users(**policy), habit="trains without gradient")
    (counted_as_alone if scheme == "table" else counted_as_on_cpus)(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"weighted": True, "learned": True}, id="weights that take a gradient"),
        pytest.param({"lookups": 2, "clip": 0.5, "ahead": True}, id="two lookups and the norm over all"),
        pytest.param({"sizes": [[[3, 1], [2, 2]]] * 2, "ahead": True}, id="gradients of several batches"),
        pytest.param({"sizes": [[[0, 4]], [[0, 1]]]}, id="a rank without rows"),
        pytest.param({"habit": "looks again", "ahead": True}, id="a lookup between forward and backward"),
        pytest.param({"habit": "forgets"}, id="a lookup whose output is not used"),
    ],
)
def test_whatever_a_step_has_it_has_with_dynamic_tables(more: dict[str, Any]) -> None:
    check(case(2, ["row", "column", "table"], **more))


@pytest.mark.slow
@pytest.mark.parametrize("lookups", [1, 2])
def test_tables_of_all_kinds_are_looked_up_together(lookups: int) -> None:
    tiered: Spec = {"name": "page", "dim": 4, "rows": 60, "combiner": "mean", "cache": 0.9}
    still: Spec = {**USER, "name": "site", "features": ["site"], "trainable": False}
    hosted: Spec = {**WORD, "name": "query", "features": ["query"], "combiner": "sum", "where": "host"}
    made = case(2, ["row", "row", "replicated", "table", "row", "row"], [USER, tiered, ITEM, WORD, still, hosted])
    assert made.placements is not None
    made.placements[-1]["where"] = "host"
    check(replace(made, ahead=True, lookups=lookups, clip=0.5))


@pytest.mark.parametrize("scheme", ["row", pytest.param("table", marks=pytest.mark.slow)])
def test_half_rows_of_dynamic_tables_are_equal_bit_for_bit_where_sums_are_exact(scheme: str) -> None:
    made = case(2, scheme, users(dtype="bfloat16", dim=17), sizes=[[[4, 4]]] * 2, weighted=True)
    found, expected = pool(2).run("tests.parallel.jobs.exact:train", case=made.to_json()), exact.train_alone(made)
    for step, wanted in enumerate(expected["outputs"]):
        assert torch.equal(torch.cat([each["outputs"][step] for each in found]), wanted), f"outputs of step {step}"
    compare_stores([each["final"] for each in found], expected["final"], 0.0, "rows")


@pytest.mark.slow
def test_checkpoints_go_from_ranks_with_dynamic_tables_to_others_and_back(tmp_path) -> None:
    folders = [str(tmp_path / name) for name in ("ranks", "alone")]
    said = pool(2).run("tests.parallel.jobs.on_device:fitted", folder=folders[0], on_device=True, capacity=40)
    alone = on_device.fitted(folders[1], on_device=False, capacity=40)
    torch.testing.assert_close(said[0]["scores"], alone["scores"], atol=1e-5, rtol=1e-5)
    here = on_device.loaded(folders[0], on_device=False, capacity=40)
    there = pool(3).run("tests.parallel.jobs.on_device:loaded", folder=folders[1], on_device=True, capacity=40)
    for found, wanted in ((here, said[0]), *((each, alone) for each in there)):
        torch.testing.assert_close(found["scores"], wanted["scores"], atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_a_run_goes_on_with_other_ranks_as_if_it_had_been_theirs_all_the_time(tmp_path) -> None:
    job, given = "tests.parallel.jobs.on_device:fitted", {"capacity": 40}
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    wanted = on_device.fitted(None, on_device=False, **given, epochs=4)
    pool(2).run(job, folder=first, on_device=True, **given, epochs=1)
    shutil.copytree(first, second)
    found = pool(3).run(job, folder=first, on_device=True, **given, epochs=4)
    pool(3).run(job, folder=second, on_device=False, **given, epochs=2)
    shutil.copytree(second, third)
    found += pool(2).run(job, folder=second, on_device=True, **given, epochs=4)
    found.append(on_device.fitted(third, on_device=False, **given, epochs=4))
    for each in found:
        torch.testing.assert_close(each["scores"], wanted["scores"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(each["weights"], wanted["weights"], atol=1e-5, rtol=1e-5)
