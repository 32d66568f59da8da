"""hr.shard: what it makes of a model, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec.parallel import Placement, Plan, Ranks, Wire
from hybridrec.parallel import plan as plans
from hybridrec.parallel.shard import _check, _load, place
from tests.parallel.jobs.sharding import Ranker
from tests.parallel.pool import pool

SHARDING = "tests.parallel.jobs.sharding"
SCHEMES = ("replicated", "table", "row", "column")


def test_a_sharded_model_looks_like_the_model_inside() -> None:
    for found in pool(2).run(f"{SHARDING}:outside"):
        assert found["kind"]
        assert not found["same"]
        assert found["schema"] == "of the ranker"
        assert found["config"] == {"tables": 1}
        assert found["tables"] == ["t0"]
        assert found["parameters"] == ["top.weight", "top.bias"]
        assert found["count"] == 2
        assert found["again"]["kind"] == "ValueError"
        assert found["absent"]["kind"] == "AttributeError"
        assert "nothing" in found["absent"]["text"]


def test_one_process_gets_its_model_back() -> None:
    (found,) = pool(1).run(f"{SHARDING}:outside")
    assert found["same"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_begin_with_the_rows_and_layers_of_rank_zero(scheme: str) -> None:
    found = pool(2).run(f"{SHARDING}:told_weights", scheme=scheme)
    assert not torch.equal(found[0]["rows"], found[1]["rows"])
    for each in found:
        assert torch.equal(each["layer"], found[0]["top"])
        here = each["held"]
        columns = slice(here["share"]["column"], here["share"]["column"] + here["dim"])
        assert torch.equal(here["rows"], found[0]["rows"][here["ids"]][:, columns])


def test_a_rank_never_holds_more_of_a_table_than_its_share() -> None:
    for found in pool(2).run(f"{SHARDING}:memory", rows=4_000_000):
        assert found["rows"] == 2_000_000
        assert found["grew"] < 0.8 * found["whole"]


@pytest.mark.parametrize("tables", [40, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scheme", ["table", "row", "column"])
def test_a_step_sends_one_message_of_each_kind_whatever_the_number_of_tables(scheme: str, tables: int) -> None:
    for found in pool(2).run(f"{SHARDING}:traffic", scheme=scheme, tables=tables, ids=[1, 2, 3]):
        assert found["calls"] == {"sizes": 1, "ids": 1, "vectors": 1, "gradients": 1}


def test_a_row_that_many_ask_for_travels_once() -> None:
    once, often = (pool(2).run(f"{SHARDING}:traffic", scheme="row", tables=1, ids=[1, 2] * n) for n in (1, 500))
    assert once == often


def test_a_bag_of_many_ids_comes_back_as_one_vector() -> None:
    short, long = (pool(2).run(f"{SHARDING}:traffic", scheme="table", tables=2, ids=[1] * n) for n in (1, 500))
    for kind in ("vectors", "gradients"):
        assert [each["bytes"][kind] for each in short] == [each["bytes"][kind] for each in long]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_are_read_by_id_from_wherever_they_lie(scheme: str) -> None:
    whole = Ranker().embeddings
    for found in pool(2).run(f"{SHARDING}:read", scheme=scheme):
        assert torch.equal(found["rows"], whole.lookup("t0", found["ids"]))


def test_init_and_shard_change_nothing_where_there_is_one_process() -> None:
    model = Ranker()
    assert hr.init() is None
    assert hr.shard(model) is model


def test_the_host_of_ranks_on_cpus_is_where_their_rows_are_anyway() -> None:
    model, whole = Ranker(), Ranker().embeddings
    placements = tuple(Placement(name, "row", (0,), where="host") for name in model.embeddings.tables)
    place(model, Plan(1, placements), Ranks(0, 1), Wire(), {})
    ids = torch.tensor([1, 0, 3])
    assert torch.equal(model.embeddings.lookup("t0", ids), whole.lookup("t0", ids))


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_cache_changes_nothing_on_cpus(where: str) -> None:
    model = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10, cache=2)])
    placed = place(model, Plan(1, (Placement("item", "column", (0,), (4,), where),)), Ranks(0, 1), Wire(), {})
    whole = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10)])
    assert torch.equal(placed.module.lookup("item", [1, 9, 3]), whole.lookup("item", [1, 9, 3]))


def test_layers_elsewhere_than_rows_are_refused() -> None:
    parts = {"rows": hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10)]), "top": nn.Linear(4, 1, device="meta")}
    with pytest.raises(ValueError, match=r"layers on meta and rows on cpu; .* make it with device='cuda'"):
        place(nn.ModuleDict(parts), None, Ranks(0, 1), Wire(), {})


CARD = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("schemes", "table", "said"),
    [
        (("table",), hr.Table("item", 4, rows=10), "hot and cold rows are table; plan anew, with more devices, or"),
        (
            ("row",),
            hr.Table("item", 4, hashes=hr.embedding.MultiHash(2, 5)),
            "tables with rows=, and without where=",
        ),
        (("row",), hr.Table("item", 4, rows=10, where="device"), "tables with rows=, and without where="),
    ],
)
def test_a_planned_cache_that_ranks_cannot_have_is_refused(monkeypatch, schemes, table, said) -> None:
    monkeypatch.setattr(plans, "TIERED", schemes)
    plan = Plan(2, (Placement("item", "row", (0, 1), cache=0.5),))
    with pytest.raises(ValueError, match=f"Placement\\(item: row on 0-1, device, 50 % hot\\): .*{said}"):
        _check(plan, {"item": table}, 2, CARD)
    _check(plan, {"item": table}, 2, torch.device("cpu"))  # where device and host are one


def test_what_ranks_plan_for_has_cold_rows_of_their_own_type() -> None:
    table = hr.Table("item", 6, rows=10, cache=2)
    loads = [_load("item", replace(table, cold=kind), 2) for kind in (None, torch.int8)]
    assert [each.cold_row_bytes - each.state_per_row for each in loads] == [24, 12]


def test_a_planned_cache_that_ranks_can_have_is_taken(monkeypatch) -> None:
    monkeypatch.setattr(plans, "TIERED", ("row",))
    _check(Plan(2, (Placement("item", "row", (0, 1), cache=0.5),)), {"item": hr.Table("item", 4, rows=10)}, 2, CARD)
