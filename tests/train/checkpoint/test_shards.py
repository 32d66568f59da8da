"""Checkpoints of tables that lie on several ranks: from any number of ranks and any plan to any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridrec.embedding import LFU, LRU, MinCount, Table
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import RowData
from hybridrec.optim import Adagrad, Adam, RowWiseAdagrad
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train import manifest_body
from hybridrec.train.checkpoint import Checkpoints, Contents, load, open_table, read_manifest, verify
from hybridrec.train.checkpoint.saved_table import SavedTable
from tests.train.checkpoint.shards import (
    SCHEMES,
    Held,
    part_of,
    random_rows,
    same,
    saved,
    shares_of,
    shuffled,
    store_of,
)

RULE = RowRule("adagrad", (StateColumn("sum"), StateColumn("mean", per_row=True)))
TABLES = st.sampled_from(
    [
        Table("item", 5, rows=23),
        Table("item", 5, rows=2, dtype=torch.bfloat16),
        Table("item", 1, rows=7, dtype=torch.float16),
        Table("user", 5, capacity=1000),
        Table("user", 4, capacity=1000, eviction=LFU(), dtype=torch.bfloat16),
    ]
)
LAYOUTS = st.tuples(st.sampled_from(SCHEMES), st.integers(1, 5))
MORE = st.tuples(st.sampled_from(SCHEMES), st.integers(1, 12))
SHARED = [HealthCheck.function_scoped_fixture]


def ids_of(table: Table, seed: int) -> torch.Tensor:
    if not table.dynamic:
        return torch.arange(table.fixed_rows)
    drawn = torch.randint(-(2**62), 2**62, (40,), generator=torch.Generator().manual_seed(seed))
    return torch.cat([drawn, torch.tensor([2**63 - 1, -(2**63)])])


def models(table: Table, shares: list[Share], data: RowData | None = None, clock: int = 0) -> list[Held]:
    """A model for each rank, with its share of the data, in an order of its own where the table is dynamic."""
    made = []
    for rank, share in enumerate(shares):
        store = store_of(table, share)
        store.attach(RULE)
        if data is not None and not share.empty:
            store.load(*shuffled(part_of(data, table, share), rank))
        for _ in range(clock):
            store.advance()
        made.append(Held({table.name: store}))
    return made


@settings(max_examples=40, suppress_health_check=SHARED)
@given(table=TABLES, before=LAYOUTS, after=LAYOUTS, seed=st.integers(0, 99))
def test_any_ranks_and_plan_load_what_any_others_saved(table, before, after, seed, tmp_path_factory, monkeypatch):
    save_and_load(table, before, after, seed, tmp_path_factory.mktemp("run"), monkeypatch)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=SHARED, deadline=None)
@given(table=TABLES, before=MORE, after=MORE, seed=st.integers(0, 9999))
def test_many_ranks_load_what_many_others_saved(table, before, after, seed, tmp_path_factory, monkeypatch):
    save_and_load(table, before, after, seed, tmp_path_factory.mktemp("run"), monkeypatch)


def save_and_load(
    table: Table, before: tuple[str, int], after: tuple[str, int], seed: int, folder: Path, monkeypatch: Any
) -> None:
    data = random_rows(table, ids_of(table, seed), RULE, seed)
    sources = models(table, shares_of(*before, table.dim), data, clock=7)
    path = saved([Contents(each) for each in sources], folder, 5, monkeypatch)
    assert verify(path) == []
    for target in models(table, shares_of(*after, table.dim)):
        report = load(path, Contents(target))
        assert report.complete
        store = target.stores[table.name]
        assert same(store.export(), part_of(data, table, store.share)), store.share
        assert (store.clock, store.rule) == (7, RULE)
        assert torch.equal(target.top.weight, sources[0].top.weight), "layers are those of rank 0"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_part_has_a_file_with_its_rows_and_columns(scheme, tmp_path, monkeypatch):
    table = Table("item", 6, rows=11)
    data = random_rows(table, torch.arange(11), RULE, 0)
    path = saved([Contents(m) for m in models(table, shares_of(scheme, 4, 6), data)], tmp_path, 5, monkeypatch)
    info = read_manifest(path).tables["item"]
    assert (info.rows, read_manifest(path).ranks) == (11, 4)
    for part in info.parts:
        file, expected = open_table(path / part.file), part_of(data, table, part.share)
        assert file["id"].to_pylist() == expected.ids.tolist()
        assert file["row"].to_pylist() == expected.rows.tolist()
        assert file["sum"].to_pylist() == expected.state["sum"].tolist()
        assert ("mean" in file.column_names) == (part.share.column == 0), "what is of whole rows is saved once"
    assert {str(file.relative_to(path)) for file in (path / "tables").iterdir()} == {part.file for part in info.parts}


def test_one_process_writes_whole_tables_to_one_file_each(tmp_path):
    [model] = models(Table("item", 2, rows=3), [Share()])
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(model), 1)
    text = json.loads((tmp_path / "step-000000001" / "manifest.json").read_text())
    share = {"index": 0, "count": 1, "column": 0, "width": 0}
    part = {"file": "tables/item.arrow", "rows": 3, "share": share, "sketch": None, "rank": 0}
    assert (text["version"], text["ranks"], text["tables"]["item"]["parts"]) == (3, 1, [part])


def test_a_checkpoint_of_version_1_is_loaded(tmp_path):
    """It had the name of the file, its rows and the size of the counts in place of parts."""
    table = Table("user", 2, capacity=50, admission=MinCount(2))
    [source] = models(table, [Share()])
    train(source.stores["user"], 1, 1, 2, 3)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(source), 1)
    file = tmp_path / "step-000000001" / "manifest.json"
    body = json.loads(file.read_text())
    [part] = body["tables"]["user"].pop("parts")
    body["tables"]["user"] |= {name: part[name] for name in ("file", "rows", "sketch")}
    del body["ranks"], body["xxh64"]
    body["version"] = 1
    file.write_text(json.dumps({**body, "xxh64": manifest_body.checksum(body)}))
    for target in models(table, [Share(), Share(1, 2)]):
        assert load(file.parent, Contents(target)).complete
        store = target.stores["user"]
        assert same(store.export(), part_of(source.stores["user"].export(), table, store.share))
        wanted = [id for id in (2, 3) if store.share.owns(table, torch.tensor([id]))]
        train(store, *wanted)
        assert set(wanted) < set(store.ids().tolist()) or not wanted, "counts were kept: the second time lets them in"


def train(store: HashStore, *ids: int) -> None:
    store.release(store.prepare(torch.tensor(ids, dtype=torch.int64), train=True))


# -- optimizers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Adagrad, RowWiseAdagrad, Adam])
def test_row_optimizers_go_on_where_others_stopped(make, tmp_path, monkeypatch):
    """The same table names on all ranks, also where a rank holds nothing of a table."""
    tables = [Table("item", 4, rows=9), Table("user", 4, capacity=90)]
    layouts = {"item": shares_of("row", 3, 4), "user": shares_of("table", 3, 4)}

    def contents(rank: int, world: list[dict[str, Share]]) -> Contents:
        model = Held({table.name: store_of(table, world[rank][table.name]) for table in tables})
        return Contents(model, {"rows": make(model, lr=0.5)})

    ranks = [{name: shares[rank] for name, shares in layouts.items()} for rank in range(3)]
    sources = [contents(rank, ranks) for rank in range(3)]
    whole = contents(0, [{"item": Share(), "user": Share()}])
    for each in (*sources, whole):
        optimizer = each.optimizers["rows"]
        for table in tables:
            store = each.model.stores[table.name]
            data = random_rows(table, torch.arange(9), store.rule, 1)
            store.load(*part_of(data, table, store.share))
            optimizer._counts[table.name] = 4
            optimizer.param_groups[0]["lr"] = 0.25
    path = saved(sources, tmp_path, 5, monkeypatch)
    others = [{"item": share, "user": share} for share in shares_of("column", 2, 4)]
    for target in (contents(0, others), contents(1, others), contents(0, [{"item": Share(), "user": Share()}])):
        assert load(path, target).complete
        optimizer = target.optimizers["rows"]
        assert [optimizer.steps_of(name) for name in ("item", "user")] == [4, 4]
        assert optimizer.param_groups[0]["lr"] == 0.25
        for table in tables:
            store = target.model.stores[table.name]
            assert same(store.export(), part_of(whole.model.stores[table.name].export(), table, store.share))
        again = optimizer.state_dict()
        optimizer.load_state_dict(again)
        assert list(again["state"]) == ["item", "user"]


def test_ranks_whose_row_optimizers_took_different_steps_do_not_save(tmp_path, monkeypatch):
    found = [Held({"item": store_of(Table("item", 4, rows=9), share)}) for share in shares_of("row", 2, 4)]
    contents = [Contents(model, {"rows": Adagrad(model, lr=0.5)}) for model in found]
    contents[1].optimizers["rows"]._counts["item"] = 1
    with pytest.raises(ValueError, match=r"different steps of row optimizers: rank 0 has \[{'item': 0}\], rank 1 has"):
        saved(contents, tmp_path, 5, monkeypatch)
    assert list(tmp_path.glob("step-*")) == []


# -- counts for admission, capacity -----------------------------------------------------------------------------


def counted(capacity: int, layout: tuple[str, int], seen: list[int]) -> list[Held]:
    table = Table("user", 2, capacity=capacity, admission=MinCount(3))
    made = models(table, shares_of(*layout, 2))
    for model in made:
        store = model.stores["user"]
        train(store, *[id for id in seen if store.share.owns(table, torch.tensor([id]))])
    return made


@pytest.mark.parametrize("capacity", [1000, 40_000])
@pytest.mark.parametrize("before", [("row", 1), ("row", 3), ("row", 4), ("column", 2)])
@pytest.mark.parametrize("after", [("row", 1), ("row", 2), ("row", 3), ("column", 2)])
def test_ids_that_were_seen_stay_counted_whatever_the_shares(capacity, before, after, tmp_path, monkeypatch):
    seen = list(range(60))
    path = saved([Contents(m) for m in counted(capacity, before, seen * 2)], tmp_path, 1, monkeypatch)
    for target in counted(capacity, after, []):
        report = load(path, Contents(target))
        assert report.complete
        if before == after:
            assert report.notes == {}
        store = target.stores["user"]
        mine = [id for id in range(100) if store.share.owns(store.table, torch.tensor([id]))]
        train(store, *mine)
        assert store.ids().tolist() == [id for id in mine if id < 60], "a third time lets them in, and no others"


def test_the_counts_of_the_same_share_are_taken_as_they_are(tmp_path, monkeypatch):
    sources = counted(40_000, ("row", 3), [1, 2, 3, 3, 4, 5, 6, 7])
    path = saved([Contents(m) for m in sources], tmp_path, 1, monkeypatch)
    for source, target in zip(sources, counted(40_000, ("row", 3), []), strict=True):
        load(path, Contents(target))
        assert torch.equal(target.stores["user"].sketch(), source.stores["user"].sketch())


@pytest.mark.parametrize(("eviction", "scored"), [(LRU(), "touched"), (LFU(), "counts")])
def test_rows_that_a_share_has_no_room_for_are_given_up_by_score_and_reported(eviction, scored, tmp_path, monkeypatch):
    table = Table("user", 2, capacity=60, eviction=eviction)
    data = random_rows(table, torch.arange(60), RULE, 0)
    path = saved([Contents(m) for m in models(table, [Share()], data)], tmp_path, 1, monkeypatch)
    lost = 0
    for target in models(table, shares_of("row", 3, 2)):
        store, notes = target.stores["user"], load(path, Contents(target)).notes
        expected = part_of(data, table, store.share)
        over = max(0, len(expected.ids) - 20)
        order = sorted(
            range(len(expected.ids)), key=lambda i: (int(getattr(expected, scored)[i]), int(expected.ids[i]))
        )
        assert store.ids().tolist() == sorted(int(expected.ids[i]) for i in order[over:])
        assert (f"{over} rows had no room, 20 being the capacity here" in notes.get("table user", "")) == (over > 0)
        lost += over
    assert lost > 0, "the hash deals ids out unevenly"


def test_shares_that_together_hold_more_than_the_capacity_fit_into_one(tmp_path, monkeypatch):
    """Each of three shares of 10 rows may hold 4."""
    table = Table("user", 2, capacity=10)
    sources = models(table, shares_of("row", 3, 2))
    for model in sources:
        store = model.stores["user"]
        ids = torch.arange(100)
        train(store, *ids[store.share.owns(table, ids)][:4].tolist())
    path = saved([Contents(m) for m in sources], tmp_path, 1, monkeypatch)
    [target] = models(table, [Share()])
    report = load(path, Contents(target))
    assert report.complete
    assert "2 rows had no room, 10 being the capacity here" in report.notes["table user"]
    assert len(target.stores["user"]) == 10


@pytest.mark.parametrize("table", [Table("item", 2, rows=70_000), Table("user", 2, capacity=10**6)], ids=str)
@pytest.mark.parametrize("before", [("row", 3), ("column", 2)])
def test_tables_of_many_batches_come_back_too(table, before, tmp_path, monkeypatch):
    data = random_rows(table, 3 * torch.arange(70_000) if table.dynamic else torch.arange(70_000), RULE, 0)
    path = saved([Contents(each) for each in models(table, shares_of(*before, 2), data)], tmp_path, 1, monkeypatch)
    for target in models(table, [Share(1, 2), Share(column=1)]):
        load(path, Contents(target))
        store = target.stores[table.name]
        assert same(store.export(), part_of(data, table, store.share))
        with SavedTable(path, read_manifest(path).tables[table.name], store) as held:
            assert max(len(part.ids) for part in held.chunks()) <= 65536, "never a whole table at a time"
