"""Workloads, stated and measured."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.parallel import measure
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
