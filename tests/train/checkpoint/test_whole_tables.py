"""Whole tables out of parts, a few rows at a time."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding import LFU, Table
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import RowData
from hybridrec.train.checkpoint import CheckpointError, Contents, export_tables, open_table
from hybridrec.train.checkpoint.whole_tables import merged
from tests.train.checkpoint.shards import SCHEMES, Held, part_of, random_rows, saved, shares_of, store_of
from tests.train.checkpoint.test_shards import RULE, ids_of, models


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_fixed_table_comes_out_whole_and_in_the_order_of_ids(scheme, tmp_path, monkeypatch):
    table = Table("item", 5, rows=23, dtype=torch.bfloat16)
    data = random_rows(table, torch.arange(23), RULE, 0)
    path = saved([Contents(each) for each in models(table, shares_of(scheme, 4, 5), data)], tmp_path, 5, monkeypatch)
    files = export_tables(path, tmp_path / "out")
    assert files == {"item": tmp_path / "out" / "item.arrow"}
    found = open_table(files["item"])
    assert found["id"].to_pylist() == list(range(23))
    assert found["row"].to_pylist() == data.rows.float().tolist()
    assert found["sum"].to_pylist() == data.state["sum"].tolist()
    assert found["mean"].to_pylist() == data.state["mean"].tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dynamic_table_comes_out_whole_part_after_part(scheme, tmp_path, monkeypatch):
    table = Table("user", 4, capacity=1000, eviction=LFU())
    data = random_rows(table, ids_of(table, 0), RULE, 0)
    path = saved([Contents(each) for each in models(table, shares_of(scheme, 3, 4), data)], tmp_path, 5, monkeypatch)
    frame = pl.read_ipc(export_tables(path, tmp_path / "out")["user"]).sort("id")
    order = data.ids.argsort()
    assert frame["id"].to_list() == data.ids[order].tolist()
    assert frame["row"].to_list() == data.rows[order].tolist()
    assert frame["touched"].to_list() == data.touched[order].tolist()
    assert frame["count"].to_list() == data.counts[order].tolist()


@given(st.lists(st.lists(st.integers(0, 40), unique=True), min_size=1, max_size=5), st.integers(1, 9))
def test_streams_in_order_are_merged_to_one_in_order_with_few_rows_at_a_time(parts, most):
    dealt = {id: stream for stream, ids in enumerate(parts) for id in ids}  # each id in one of them
    streams = [sorted(id for id, owner in dealt.items() if owner == stream) for stream in range(len(parts))]

    def chunks(ids: list[int]) -> list[RowData]:
        halves = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
        return [RowData(torch.tensor(half), torch.tensor(half)[:, None], {}) for half in halves if half]

    found = list(merged([chunks(ids) for ids in streams], most))
    assert list(itertools.chain(*(part.ids.tolist() for part in found))) == sorted(dealt)
    assert all(torch.equal(part.rows[:, 0], part.ids) for part in found)
    assert all(len(part.ids) <= max(most, len(parts)) for part in found)


def test_what_cannot_be_exported_is_named(tmp_path, monkeypatch):
    table = Table("item", 2, rows=5)
    path = saved([Contents(Held({"item": store_of(table)}))], tmp_path, 5, monkeypatch)
    with pytest.raises(ValueError, match="the checkpoint has no table 'user'; it has item"):
        export_tables(path, tmp_path / "out", ["user"])
    export_tables(path, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"item.arrow is there already; give another folder"):
        export_tables(path, tmp_path / "out")
    file = path / "tables" / "item.arrow"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"is damaged: tables/item.arrow: it has .* export another checkpoint"):
        export_tables(path, tmp_path / "other")


def test_parts_without_rows_are_passed_over(tmp_path, monkeypatch):
    table = Table("item", 2, rows=2)
    shares = [Share(rank, 4) for rank in range(4)]
    data = random_rows(table, torch.arange(2), RULE, 0)
    path = saved([Contents(each) for each in models(table, shares, data)], tmp_path, 5, monkeypatch)
    found = open_table(export_tables(path, tmp_path / "out")["item"])
    assert found["row"].to_pylist() == part_of(data, table, Share()).rows.tolist()
