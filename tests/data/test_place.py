"""Rows are named by file and row, whatever selects them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from hybridrec.data.place import labels_in_order, place_of


@pytest.fixture
def files(tmp_path):
    for number in range(2):
        rows = {"user": range(10), "click": [number] * 10}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet", row_group_size=4)
    return hr.data.parquet(tmp_path, label="click", batch_size=3)


@pytest.mark.parametrize(("row", "place"), [(0, "0.parquet, row 0"), (9, "0.parquet, row 9"), (15, "1.parquet, row 5")])
def test_a_row_has_its_file_and_the_row_of_that_file(files, row, place):
    assert place_of(files, row).endswith(f"/{place}")


def test_filters_and_splits_are_seen_through(files):
    assert place_of(files.where([("user", ">", 6)]), 4).endswith("/1.parquet, row 8")
    assert place_of(files.split(0.5)[1], 0).endswith("/1.parquet, row 0")


def test_rows_in_memory_and_of_streams_have_a_number(files):
    assert place_of(hr.data.table({"user": [1, 2]}, batch_size=2), 1) == "row 1"
    assert place_of(hr.data.stream([pa.record_batch({"user": [1, 2]})], batch_size=2), 1) == "row 1"


def test_labels_come_in_the_order_of_the_files(files):
    found = [(begins, batch.label.tolist()) for begins, batch in labels_in_order(files.shuffle(seed=1))]
    assert [begins for begins, _ in found] == list(range(0, 20, 3))
    assert [label for _, labels in found for label in labels] == [0] * 10 + [1] * 10
