"""Ranks whose tables have hot rows on the device and the others on its host equal one process on the CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from tests.gpu import needs_gpu
from tests.parallel import standard
from tests.parallel.equality import compare
from tests.parallel.gpu import small
from tests.parallel.jobs import on_device
from tests.parallel.jobs.training import train_alone
from tests.parallel.pool import pool
from tests.parallel.training_case import Case, Spec

pytestmark = needs_gpu

JOBS = "tests.parallel.jobs.on_device"
TABLES: list[Spec] = [
    {
        "name": "item",
        "dim": 4,
        "rows": 60,
        "features": ["item", "history", "liked"],
        "combiner": {"item": "sum", "history": "none", "liked": "mean"},
        "cache": 0.5,
    },
    {"name": "wide", "dim": 5, "rows": 80, "combiner": "sqrtn", "out_of_range": "hash", "cache": 0.2},
    {"name": "largest", "dim": 4, "rows": 50, "combiner": "max", "out_of_range": "zero", "cache": 0.5},
    {"name": "few", "dim": 4, "rows": 3},  # all of it is on the device, and it can be split by columns
    {"name": "one", "dim": 4, "rows": 1, "cache": 1},  # of which all ranks but one have nothing
]
SIZES = [[[2, 2, 1]], [[1, 2, 2]], [[2, 2, 0]]]
FEW = [[[2, 1]], [[1, 1]], [[1, 2]]]


def case(world: int, scheme: str, **more: Any) -> Case:
    """Tables in two tiers beside one that is all on the device."""
    given = {"sizes": standard.sizes(world, SIZES), "hot": {"item": 1, "largest": 2}, "longest": 2}
    return small.case(world, scheme, **{"tables": TABLES, **given, **more})


def check(case: Case) -> None:
    """The ranks equal one process, rows of every table have changed places, and all ranks tell the hit rate of all."""
    found = pool(case.world).run(f"{JOBS}:train_in_tiers", case=case.to_json())
    compare(case, found, train_alone(case))
    for name in ("item", "wide", "largest"):
        counted = [each["counters"][name] for each in found if name in each["counters"]]
        assert sum(each["moved_rows"] for each in counted) > 0, f"rows of table {name!r} that changed places: {counted}"
        ids, cold = (sum(each[what] for each in counted) for what in ("ids", "cold_ids"))
        for each in found:
            assert each["told"][name]["hit_rate"] == (ids - cold) / ids
            assert each["told"][name]["bytes_each_way"] == sum(one["bytes_each_way"] for one in counted)


def test_rows_in_two_tiers_with_ids_that_go_ahead_equal_one_process(tmp_path: Path) -> None:
    files: list[Spec] = [{**table, "path": str(tmp_path)} if table["name"] == "wide" else table for table in TABLES]
    check(case(2, "row", ahead=True, optimizer="Adagrad", options={"lr": 0.1}, tables=files))


def test_rows_of_a_batch_come_when_the_one_before_has_sent_its_gradients_and_drive_none_of_it_away() -> None:
    found = pool(2).run(f"{JOBS}:admitted_ahead")
    assert [each["admitted"] for each in found] == [[2, 3, 3]] * 2
    once = {str(id): 1.0 for id in (*range(24), 32, 33)}
    assert found[0]["updates"] | found[1]["updates"] == once | {"2": 2.0, "3": 2.0}


def test_more_rows_than_a_rank_has_room_for_are_told_to_all_and_none_is_lost() -> None:
    first, second = pool(2).run(f"{JOBS}:too_many")
    assert first["kind"] == "ValueError"
    assert re.search(r"rank 0: table 't0' has 3 rows on .* needed 1 more.*cache=4 or more", first["text"])
    assert "rank 0 has ids that cannot be looked up" in second["text"]
    assert (first["changed"], second["changed"]) == (0, 1), "the rank with room has taken its step"
    assert first["goes on"]
    assert second["goes on"]


def test_a_file_of_cold_rows_that_was_cut_is_named_on_its_rank_and_the_others_are_told(tmp_path: Path) -> None:
    found = pool(2).run(f"{JOBS}:cut", folder=str(tmp_path), rank=1)
    assert [each["kind"] for each in found] == ["RuntimeError", "OSError"]
    assert re.search(r"rank 1: the file with the cold rows of table 't0' .* go on from a checkpoint", found[1]["text"])
    assert "rank 1 has ids that cannot be looked up, and has stopped" in found[0]["text"]


def test_more_rows_than_the_cache_has_are_read_by_id() -> None:
    for found in pool(2).run(f"{JOBS}:read", cache=1):
        assert found["rows"], "rows by id are those of the whole table"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["table", "replicated"])
def test_rows_in_two_tiers_are_read_by_id_whatever_the_scheme(scheme: str) -> None:
    for found in pool(2).run(f"{JOBS}:read", scheme=scheme, cache=1):
        assert found["rows"], "rows by id are those of the whole table"


@pytest.mark.slow
@pytest.mark.parametrize(("world", "scheme"), [(3, "row"), (3, "mixed"), (2, "mixed"), (2, "replicated")])
def test_every_scheme_of_whole_rows_has_them_in_two_tiers(world: int, scheme: str) -> None:
    check(case(world, scheme))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"weighted": True, "learned": True}, id="weights that take a gradient"),
        pytest.param({"lookups": 2, "clip": 0.5, "ahead": True, "sizes": FEW}, id="two lookups and the norm over all"),
        pytest.param({"sizes": [[[1, 1], [1, 1]]] * 2, "ahead": True}, id="gradients of several batches"),
        pytest.param({"habit": "looks again", "ahead": True}, id="a lookup between forward and backward"),
        pytest.param({"habit": "trains without gradient", "ahead": True}, id="a lookup in training without a gradient"),
    ],
)
def test_whatever_a_step_has_it_has_with_rows_in_two_tiers(more: dict[str, Any]) -> None:
    check(case(2, "row", **more))


@pytest.mark.slow
def test_checkpoints_go_from_ranks_with_tiers_to_others_and_back(tmp_path) -> None:
    folders = [str(tmp_path / name) for name in ("tiers", "alone")]
    said = pool(2).run(f"{JOBS}:fitted", folder=folders[0], on_device=True, cache=8)
    alone = on_device.fitted(folders[1], on_device=False)
    torch.testing.assert_close(said[0]["scores"], alone["scores"], atol=1e-5, rtol=1e-5)
    here = on_device.loaded(folders[0], on_device=False)
    there = pool(2).run(f"{JOBS}:loaded", folder=folders[1], on_device=True, cache=8)
    for found, wanted in ((here, said[0]), *((each, alone) for each in there)):
        torch.testing.assert_close(found["scores"], wanted["scores"], atol=1e-6, rtol=1e-6)
