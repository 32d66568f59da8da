"""Figures of tables."""

from __future__ import annotations

import torch
from torch import nn

import hybridrec as hr
from hybridrec.server.client import Servers
from hybridrec.server.protocol import Kind
from hybridrec.server.shard import Shard
from hybridrec.train.table_figures import TableFigures, plan, stores


def two_collections() -> nn.Module:
    tables = [hr.Table("user", dim=2, capacity=100), hr.Table("item", dim=4, rows=10)]
    return nn.ModuleDict(
        {"left": hr.EmbeddingCollection(tables), "right": hr.EmbeddingCollection([hr.Table("user", dim=8, rows=5)])}
    )


def test_tables_of_one_name_are_told_apart_by_their_module():
    assert list(stores(two_collections())) == ["left.user", "item", "right.user"]


def test_hit_rates_are_those_since_the_last_time():
    emb = hr.EmbeddingCollection([hr.Table("user", dim=2, capacity=100)])
    rows = hr.optim.SGD(emb, lr=0.1)
    figures = TableFigures(emb)
    for ids, hits in (([1, 2, 3, 4], 0.0), ([1, 2, 3, 9], 0.75), ([9, 9], 1.0)):
        emb({"user": torch.tensor(ids)}).flat.sum().backward()
        rows.step()
        found = figures.take()["user"]
        assert found["hit_rate"] == hits
    assert found["rows"] == 5
    assert figures.take()["user"]["hit_rate"] is None, "nothing was looked up"


def test_norms_are_the_mean_over_rows_where_asked_for():
    emb = hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10, init=hr.embedding.Constant(0.5))])
    assert TableFigures(emb).take(norms=True)["item"]["norm"] == 1.0
    assert "norm" not in TableFigures(emb).take()["item"]
    empty = hr.EmbeddingCollection([hr.Table("item", dim=4, capacity=10)])
    assert TableFigures(empty).take(norms=True)["item"]["norm"] == 0.0


def test_the_plan_lists_store_size_and_bytes():
    found = plan(two_collections())["tables"]
    assert found["left.user"]["store"] == "HashStore"
    assert (found["left.user"]["rows"], found["left.user"]["capacity"]) == (None, 100)
    assert (found["item"]["rows"], found["item"]["bytes"]) == (10, 160)


def test_figures_of_tables_on_servers_are_those_of_tables_here_and_take_one_message_a_table():
    found = []
    for where in (None, "server"):
        table = hr.Table("user", dim=2, capacity=100, where=where)
        emb = hr.EmbeddingCollection([table, hr.Table("item", dim=4, capacity=100, where=where)])
        shards = [Shard(number, 2) for number in range(2)]
        model = hr.shard(emb, servers=Servers.direct(shards)) if where else emb
        rows, figures = hr.optim.SGD(model, lr=0.1), TableFigures(model)
        for ids in ([1, 2, 3, 4], [1, 2, 3, 9]):
            model({"user": torch.tensor(ids), "item": torch.tensor(ids)}).flat.sum().backward()
            rows.step()
        asked = _count(shards, Kind.TABLE)
        found.append({name: {**each, "bytes": None} for name, each in figures.take().items()})
        assert asked == ([2, 2] if where else [0, 0]), "a message for each table"
    assert found[1] == found[0]


def _count(shards: list[Shard], kind: Kind) -> list[int]:
    """How many requests of a kind each shard gets from now on; the list changes as they come."""
    counts = [0] * len(shards)
    for number, shard in enumerate(shards):

        def handle(request, done, owner=None, number=number, real=shard.handle):
            counts[number] += request.kind == kind
            real(request, done, owner)

        shard.handle = handle
    return counts
