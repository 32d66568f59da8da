"""Batches whose rows come from all over a shuffled window: every kind of column, nulls, what is wrong with a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hybridrec as hr
from tests.data.oracle import expected_rows, rows_of, same

ROWS = 3000  # several times as many as are written at once of a chunk's numbers
LIST = pa.list_(pa.int64())


def column(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Every third value is null."""
    return pa.array([None if i % 3 == 1 else value for i, value in enumerate(values)], kind)


def lists(values: Iterable[Any], kind: pa.DataType, width: int) -> pa.Array:
    """Every third list is null, and the first element of every third other one."""
    rows = ([None if i % 3 == 2 else value, *[value] * (width - 1)] for i, value in enumerate(values))
    return column(rows, kind)


MIXED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "row": (pa.array(range(ROWS)), {}),
    "i8": (column((i % 100 for i in range(ROWS)), pa.int8()), {}),
    "u64": (column(range(ROWS), pa.uint64()), {"default": 7}),
    "word": (column((f"w{i}" for i in range(ROWS)), pa.dictionary(pa.int16(), pa.string())), {}),
    "some": (column(range(ROWS), pa.int64()), {"null": "empty"}),
    "pair": (lists(range(ROWS), pa.list_(pa.int32(), 2), 2), {"default": 5}),
    "two": (lists(range(ROWS), LIST, 2), {"size": 2}),
    "tags": (lists(range(ROWS), LIST, 3), {"default": 9}),
    "f16": (column(np.arange(ROWS, dtype=np.float16), pa.float16()), {"default": -1.0}),
    "f64": (column(np.arange(ROWS) / 3, pa.float64()), {}),
    "yes": (column((i % 5 == 0 for i in range(ROWS)), pa.bool_()), {"kind": "dense", "default": True}),
    "three": (lists(np.arange(ROWS) / 7, pa.list_(pa.float32(), 3), 3), {"default": [1, 2, 3]}),
    "whole": (pa.array(np.arange(ROWS, dtype=np.float32)), {}),
}


@pytest.mark.parametrize("batch_size", [1, 64, ROWS])
def test_rows_keep_their_values_whatever_their_types_and_nulls(batch_size, tmp_path):
    table = pa.table({name: array for name, (array, _) in MIXED.items()})
    pq.write_table(table.slice(0, 1900), tmp_path / "a.parquet", row_group_size=700)
    pq.write_table(table.slice(1900), tmp_path / "b.parquet", row_group_size=300)
    ds = hr.data.parquet(tmp_path, batch_size=batch_size).shuffle(seed=3, rows=2000)
    schema = ds.schema
    for name, (_, changes) in MIXED.items():
        schema = schema.edit(name, **changes)
    rows = rows_of(ds.with_schema(schema))
    order = [row["row"][0] for row in rows]
    assert (sorted(order), order == sorted(order)) == (list(range(ROWS)), False)
    expected = expected_rows(table.to_pylist(), schema)
    assert all(same(row, expected[i]) for i, row in zip(order, rows, strict=True))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("width", [16, 17, 300, 9000])  # a block of neighbouring rows has 512, 481, 27 and 1 of them
def test_wide_rows_keep_their_values_in_blocks_of_few_rows(width, shuffled):
    rows = {16: 1100, 17: 1100, 300: 70, 9000: 5}[width]
    numbers = np.arange(rows * width, dtype=np.float32)
    whole, less = (pa.FixedSizeListArray.from_arrays(pa.array(each), width) for each in (numbers, numbers * 2))
    table = pa.table({"row": range(rows), "whole": whole, "less": pa.array([*less.to_pylist()[:-1], None], less.type)})
    for names in (["row", "whole"], ["row", "whole", "less"]):  # as it lies in memory, and beside another
        ds = hr.data.table(table.select(names), batch_size=rows * 3 // 4)
        ds = ds.with_schema(ds.schema.edit("less", default=[7.0] * width) if "less" in names else ds.schema)
        batches = list(ds.shuffle(seed=1, rows=rows) if shuffled else ds)
        order = torch.cat([batch.ids["row"].values for batch in batches])
        assert (order.sort().values.tolist(), order.tolist() == list(range(rows))) == (list(range(rows)), not shuffled)
        expected = np.stack([numbers.reshape(rows, width), 2 * numbers.reshape(rows, width)], 1)[:, : len(names) - 1]
        expected[-1, 1:] = 7.0
        assert np.array_equal(torch.cat([batch.dense for batch in batches]), expected.reshape(rows, -1)[order])


def test_columns_of_empty_lists_alone_keep_their_place_beside_others():
    empty = {kind: pa.array([[]] * ROWS, pa.list_(getattr(pa, kind)(), 0)) for kind in ("int64", "float32")}
    ds = hr.data.table(pa.table({"before": range(ROWS), **empty, "after": range(ROWS)}), batch_size=700)
    for batch in ds.shuffle(seed=3):
        assert batch.ids["before"].to_list() == batch.ids["after"].to_list()
        assert batch.ids["int64"].to_list() == [[]] * len(batch)
        assert batch.dense.shape == (len(batch), 0)


@pytest.mark.parametrize(
    ("bad", "changes", "message"),
    [
        (None, {"null": "error", "size": 2}, "a null, "),
        ([1], {"null": "id", "size": 2}, "a list of 1 values, but size=2"),
        ([1, None], {"default": [7, 8], "size": 2}, "a null inside a list"),
        ([1, None], {"null": "error"}, "a null inside a list"),
        ([1.0, None], {"kind": "dense", "size": 2, "null": "error"}, "a null inside a list"),
        ([1.0], {"kind": "dense", "size": 2}, "a list of 1 values, but size=2"),
    ],
)
def test_of_several_bad_rows_the_first_of_the_batch_is_named(bad, changes, message, tmp_path):
    rows = [bad if i % 10 == 0 else [1, 2] for i in range(600)]
    values = pa.array(rows, pa.list_(pa.float64()) if changes.get("kind") == "dense" else LIST)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": values, "row": range(600)}), path, row_group_size=100)
    ds = hr.data.parquet(path, batch_size=300).shuffle(seed=2, rows="all")
    order = next(iter(ds.select(["row"]))).ids["row"].values.tolist()
    first = next(i for i in order if i % 10 == 0)
    with pytest.raises(ValueError, match=rf"column 'x', .*row group {first // 100}, row {first % 100}: {message}"):
        next(iter(ds.with_schema(ds.schema.edit("x", **changes))))
