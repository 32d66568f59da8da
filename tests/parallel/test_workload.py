"""Workloads, stated and measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.parallel import TableLoad, measure
from tests.patience import PATIENCE

from .cases import table


@given(
    st.integers(1, 10**6),
    st.floats(0, 1e9),
    st.lists(st.floats(1, 1e6), max_size=4, unique=True),
)
def test_distinct_ids_are_no_more_than_ids_or_rows(rows, ids, points):
    growth = tuple((n, max(1.0, n**0.7)) for n in sorted(points))
    found = table(rows=rows, growth=growth).distinct(ids)
    assert 0 <= found <= min(ids, rows)


def test_evenly_spread_ids_repeat_as_chance_has_it():
    drawn = np.random.default_rng(0).integers(0, 1000, (200, 700))
    seen = np.mean([len(np.unique(line)) for line in drawn])
    assert table(rows=1000).distinct(700) == pytest.approx(seen, rel=0.01)


@pytest.fixture
def clicks() -> hr.data.Dataset:
    draw = np.random.default_rng(0)
    rows = 20_000
    lists = pa.ListArray.from_arrays(np.arange(0, 3 * rows + 1, 3), draw.integers(0, 50, 3 * rows))
    columns = {"user": draw.integers(0, 2**40, rows), "tags": lists, "click": draw.integers(0, 2, rows)}
    return hr.data.table(pa.table(columns), label="click", batch_size=500)


def test_hotness_duplicates_and_bytes_are_measured(clicks):
    tables = [
        hr.Table("user", dim=8, capacity=10**10),
        hr.Table("tags", dim=4, rows=50, combiner="mean", dtype=torch.float16),
    ]
    rules = {"user": RowRule("adagrad", (StateColumn("sum"),)), "tags": RowRule("x", (StateColumn("s", per_row=True),))}
    user, tags = measure(clicks, tables, rules, sample=5_000).tables
    assert user.hotness == 1
    assert user.rows == pytest.approx(20_000, rel=0.001)  # all that the whole data would bring, from a quarter of it
    assert user.row_bytes() == 8 * 8 + 32
    assert user.duplicate_share(5_000) == pytest.approx(0, abs=1e-3)
    assert tags.hotness == 3
    assert tags.distinct(15_000) == 50
    assert tags.row_bytes() == 4 * 2 + 4
    assert not tags.dynamic


def test_the_ids_of_features_that_share_a_table_count_together(clicks):
    shared = hr.Table("both", dim=4, capacity=10**6, features=["user", "tags"], combiner="mean")
    (both,) = measure(clicks, [shared], batch_size=64, sample=1_000).tables
    assert both.hotness == 4
    assert both.distinct(4_000) == pytest.approx(1_050, abs=2)


def test_a_multi_hash_table_reads_several_rows_for_an_id(clicks):
    (user,) = measure(clicks, [hr.Table("user", dim=4, hashes=hr.embedding.MultiHash(3, 1000))], sample=1_000).tables
    assert user.hotness == 3
    assert user.rows == 3_000


def test_data_without_rows_is_refused(clicks):
    empty = clicks.where(pa.compute.field("click") > 5)
    with pytest.raises(ValueError, match="no rows to measure"):
        measure(empty, [hr.Table("user", dim=4, rows=10)])


def test_planning_needs_no_torch():
    code = "import sys, hybridrec.parallel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False).returncode == 0


@pytest.mark.parametrize("growth", [(), ((1000.0, 400.0), (16_000.0, 3_000.0)), ((500.0, 80.0),)])
def test_the_more_rows_are_hot_the_fewer_are_missed(growth):
    load = TableLoad("item", rows=10_000, dim=8, growth=growth)
    missed = [load.missed(256, hot) for hot in (1, 10, 100, 1000, 5000, 10_000)]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] <= load.distinct(256)
    assert missed[-1] == pytest.approx(0.0, abs=1e-6)


def test_misses_are_those_of_a_cache_that_gives_up_the_row_used_longest_ago():
    """Ids by a power law: what the curve of distinct ids says, beside a cache that is played through."""
    drawn = np.random.default_rng(0).zipf(1.3, 60_000) % 20_000
    growth = tuple((float(n), float(len(np.unique(drawn[:n])))) for n in (250, 1000, 4000, 16_000, 60_000))
    load, hot, batch = TableLoad("item", rows=20_000, dim=8, growth=growth), 400, 500
    cache: dict[int, None] = {}
    missed = []
    for first in range(0, 60_000, batch):
        ids = np.unique(drawn[first : first + batch]).tolist()
        missed.append(sum(each not in cache for each in ids))
        for each in drawn[first : first + batch].tolist():
            cache.pop(each, None)
            cache[each] = None
        for each in list(cache)[: max(0, len(cache) - hot)]:
            del cache[each]
    assert load.missed(batch, hot) == pytest.approx(np.mean(missed[40:]), rel=0.15)


def test_a_measured_table_has_its_cache_as_a_share_and_hashed_ones_have_none():
    ids = {"item": [1, 2, 3, 4] * 5, "click": [0, 1] * 10}
    ds = hr.data.table(ids, label="click", batch_size=10)
    tables = [
        hr.Table("item", dim=4, rows=1000, cache=250),
        hr.Table("hashed", dim=4, hashes=hr.embedding.MultiHash(2, 5), features=["item"]),
    ]
    found = [measure(ds, [each]).tables[0] for each in tables]
    assert [each.cache for each in found] == [0.25, None]
    assert [each.takes_cache for each in found] == [True, False]


def test_a_measured_table_says_what_its_cold_rows_take():
    ds = hr.data.table({"item": [1, 2, 3, 4] * 5, "click": [0, 1] * 10}, label="click", batch_size=10)
    usual = hr.Table("item", dim=6, rows=1000, cache=250)
    kinds = {None: 24, torch.float32: 24, torch.bfloat16: 12, torch.int8: 12}
    for kind, size in kinds.items():
        load = measure(ds, [replace(usual, cold=kind)]).tables[0]
        assert (load.row_bytes(), load.cold_row_bytes) == (24, size)
