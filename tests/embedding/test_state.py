"""state_dict of a collection: every table whole, or not at all."""

from __future__ import annotations

import io
import re

import pytest
import torch

from hybridrec.embedding import LFU, EmbeddingCollection, LoadReport, MinCount, Table
from hybridrec.types import IdBlock

FIXED, LONG = Table("item", 2, rows=4), Table("tag", 3, rows=5, dtype=torch.bfloat16)
DYNAMIC = Table("user", 2, capacity=9, eviction=LFU(), admission=MinCount(2))


def collection(*tables: Table, seed: int = 0, **options: bool) -> EmbeddingCollection:
    return EmbeddingCollection(tables or (FIXED, LONG, DYNAMIC), seed=seed, **options)


def trained(*tables: Table) -> EmbeddingCollection:
    """With rows for users 5 and 7, a count of one for user 1, and other rows than a new collection has."""
    emb = collection(*tables, seed=1)
    users = torch.tensor([7, 5, 5, 7, 7, 1])
    emb(IdBlock.from_ragged({"item": users % 4, "tag": users % 5, "user": users}))
    return emb


def same(a: EmbeddingCollection, b: EmbeddingCollection) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_the_keys_are_those_of_the_tables():
    assert list(trained().state_dict(prefix="emb.")) == [
        "emb.item.weight",
        "emb.tag.weight",
        *(f"emb.user.{part}" for part in ("ids", "weight", "touched", "counts", "sketch", "clock")),
    ]
    assert list(collection(Table("u", 2, capacity=3)).state_dict()) == ["u.ids", "u.weight", "u.touched", "u.clock"]


def test_fixed_rows_are_viewed_and_dynamic_ones_copied():
    emb = trained()
    state = emb.state_dict()
    state["item.weight"][0] = 7
    state["user.weight"].fill_(7)
    assert emb.lookup("item", [0]).tolist() == [[7, 7]]
    assert emb.lookup("user", [5]).tolist() != [[7, 7]]
    assert state["tag.weight"].dtype == torch.bfloat16
    assert state["user.ids"].tolist() == [5, 7]
    assert state["user.counts"].tolist() == [2, 3]


def test_loading_makes_two_collections_equal():
    emb = collection()
    result = emb.load_state_dict(trained().state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert same(emb, trained())
    assert emb.load_report.loaded == ("item", "tag", "user")
    emb(IdBlock.from_ragged({"item": torch.tensor([0]), "tag": torch.tensor([0]), "user": torch.tensor([1])}))
    assert emb["user"].ids().tolist() == [1, 5, 7], "the sketch remembers the first sight of user 1"


def test_it_travels_through_torch_save_inside_a_model():
    model, other = (
        torch.nn.ModuleDict({"emb": made, "top": torch.nn.Linear(2, 1)}) for made in (trained(), collection())
    )
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert same(other["emb"], model["emb"])


@pytest.mark.parametrize("source", [True, False])
def test_fused_and_unfused_load_each_others_fixed_tables(source):
    mine, theirs = (
        EmbeddingCollection([FIXED, LONG], seed=seed, fused=fused) for seed, fused in ((1, source), (2, not source))
    )
    assert not same(mine, theirs)
    theirs.load_state_dict(mine.state_dict())
    assert same(mine, theirs)


MISFITS = [
    (Table("item", 3, rows=4), "found 4 rows of dim 2, wanted 4 rows of dim 3"),
    (Table("item", 2, rows=5), "found 4 rows of dim 2, wanted 5 rows of dim 2"),
    (Table("user", 3, capacity=9, eviction=LFU(), admission=MinCount(2)), "found 2 rows of dim 2, wanted dim 3"),
    (
        Table("user", 2, capacity=1, eviction=LFU(), admission=MinCount(2)),
        "found 2 rows, wanted at most 1, its capacity",
    ),
    (
        Table("item", 2, capacity=9),
        "found the 4 rows of a fixed table without their ids, wanted those of a dynamic one",
    ),
    (Table("user", 2, rows=2), "found the 2 rows of a dynamic table, wanted the 2 of a fixed one"),
]


@pytest.mark.parametrize(("table", "reason"), MISFITS)
@pytest.mark.parametrize("inside", [True, False])
def test_a_misfit_is_named_and_its_table_unchanged(table, reason, inside):
    model, saved = collection(LONG, table), trained()
    if inside:
        model, saved = (torch.nn.ModuleDict({"emb": made}) for made in (model, saved))
    with pytest.raises(RuntimeError, match=re.escape(f'"{"emb." * inside}{table.name}.weight: {reason}"')):
        model.load_state_dict(saved.state_dict())
    emb = model["emb"] if inside else model
    assert torch.equal(emb.lookup(table.name, [0, 1]), collection(LONG, table).lookup(table.name, [0, 1]))
    assert len(emb[table.name]) == len(collection(table)[table.name])


@pytest.mark.parametrize(("table", "reason"), MISFITS)
@pytest.mark.parametrize("fused", [True, False])
def test_without_strict_a_misfit_is_skipped_and_reported(table, reason, fused):
    if table.dynamic and not fused:
        pytest.skip("dynamic tables are always fused")
    emb = collection(LONG, table, fused=fused)
    result = emb.load_state_dict(trained().state_dict(), strict=False)
    assert result.missing_keys == [f"{table.name}.weight"]
    assert (emb.load_report.loaded, emb.load_report.skipped) == (("tag",), {table.name: reason})
    assert torch.equal(emb.lookup("tag", torch.arange(5)), trained().lookup("tag", torch.arange(5)))
    assert torch.equal(emb.lookup(table.name, [0, 1]), collection(LONG, table).lookup(table.name, [0, 1]))


def test_a_table_that_lacks_a_part_is_skipped_and_the_part_named():
    state = trained().state_dict()
    del state["user.sketch"]
    emb = collection()
    assert emb.load_state_dict(state, strict=False).missing_keys == ["user.sketch"]
    assert emb.load_report.skipped == {"user": "found no sketch"}
    assert len(emb["user"]) == 0


def test_torch_hears_of_missing_and_unexpected_keys():
    emb = collection(FIXED, Table("new", 2, rows=3))
    result = emb.load_state_dict(trained(FIXED, LONG).state_dict(), strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["new.weight"], ["tag.weight"])
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"tag.weight\""):
        collection(FIXED).load_state_dict(trained(FIXED, LONG).state_dict())


def test_ids_that_are_not_distinct_are_a_misfit():
    state = trained().state_dict()
    state["user.ids"] = torch.tensor([5, 5])
    with pytest.raises(
        RuntimeError, match=re.escape("user.weight: found ids torch.int64 [2], wanted int64 [2], each once")
    ):
        collection().load_state_dict(state)


def test_optimizer_state_of_a_fixed_table_stays():
    from hybridrec.optim.rule import RowRule, StateColumn

    emb = collection(FIXED)
    emb["item"].attach(RowRule("adagrad", (StateColumn("sum", fill=0.5),)))
    emb.load_state_dict(trained(FIXED).state_dict())
    assert (emb["item"].export().state["sum"] == 0.5).all()


def test_the_report_reads_well():
    assert repr(LoadReport()) == "0 tables loaded"
    assert repr(LoadReport(("a", "b"), {"c": "found x, wanted y"})).split("\n") == [
        "2 tables loaded: a, b",
        "1 table skipped:",
        "  c: found x, wanted y",
    ]
