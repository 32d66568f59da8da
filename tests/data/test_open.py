from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from tests.data.oracle import equal_batches, rows_of

TABLE = pa.table(
    {
        "user": pa.array(range(50), pa.int64()),
        "price": pa.array([i / 4 for i in range(50)], pa.float64()),
        "word": pa.array([f"w{i % 7}" for i in range(50)]),
        "click": pa.array([i % 2 for i in range(50)], pa.int64()),
    }
)
OPTIONS = {"batch_size": 8, "label": "click"}


def by_every_way(folder):
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=11)
    pa.csv.write_csv(TABLE, folder / "a.csv")
    (folder / "a.tsv").write_text(
        "\n".join("\t".join(map(str, r)) for r in zip(*TABLE.to_pydict().values(), strict=True))
    )
    pa.feather.write_feather(TABLE, folder / "a.feather", chunksize=9)
    with pa.ipc.new_stream(folder / "a.arrows", TABLE.schema) as stream:
        stream.write_table(TABLE, max_chunksize=13)
    names = hr.data.CsvOptions(header=False, column_names=TABLE.column_names)
    yield "parquet", hr.data.parquet(folder / "a.parquet", **OPTIONS)
    yield "csv", hr.data.csv(folder / "a.csv", **OPTIONS)
    yield "tsv", hr.data.csv(folder / "a.tsv", format=names, **OPTIONS)
    yield "feather", hr.data.ipc(folder / "a.feather", **OPTIONS)
    yield "ipc stream", hr.data.ipc(folder / "a.arrows", **OPTIONS)
    yield "table", hr.data.table(TABLE, **OPTIONS)
    yield "pandas", hr.data.table(TABLE.to_pandas(), **OPTIONS)
    yield "polars", hr.data.table(pl.from_arrow(TABLE), **OPTIONS)
    yield "dict", hr.data.table(TABLE.to_pydict(), **OPTIONS)
    yield "batches", hr.data.table(TABLE.to_batches(max_chunksize=7), **OPTIONS)
    yield "stream", hr.data.stream(TABLE.to_batches(max_chunksize=7), **OPTIONS)


def test_every_way_in_gives_the_same_batches(tmp_path):
    made = dict(by_every_way(tmp_path))
    expected = list(made.pop("parquet"))
    assert [len(batch) for batch in expected] == [8] * 6 + [2]
    assert {name for name, ds in made.items() if not equal_batches(list(ds), expected)} == set()
    assert {name for name, ds in made.items() if [f.kind for f in ds.schema] != ["id", "dense", "id", "label"]} == set()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0: a batch has at least one row"),
        ({"batch_size": -3}, ValueError, "batch_size=-3"),
        ({"batch_size": 2.5}, TypeError, "batch_size=2.5: .*integer"),
        ({"label": "clik"}, ValueError, "no column named 'clik'; the data has user, price, word, click"),
        ({"label": "word"}, ValueError, "label 'word' holds string, not numbers"),
        ({"weight": "wait"}, ValueError, "no column named 'wait'"),
        ({"threads": 0}, ValueError, "threads=0: at least 1"),
        ({"prefetch": 0}, ValueError, "prefetch=0: at least 1"),
        ({"memory": 0}, ValueError, "memory=0: at least 1"),
        ({"on_bad_file": "skip"}, TypeError, "no option named on_bad_file here; there are label, weight"),
        ({"colour": 1}, TypeError, "no option named colour here; there are label, weight"),
        ({"bach": 3}, TypeError, "bach"),
        ({"where": "user > 3"}, TypeError, "where must be"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_when_the_dataset_is_made(given, error, message):
    with pytest.raises(error, match=message):
        hr.data.table(TABLE, **(OPTIONS | given))


def test_a_schema_speaks_for_itself():
    schema = hr.data.table(TABLE, **OPTIONS).schema
    assert rows_of(hr.data.table(TABLE, batch_size=8, schema=schema)) == rows_of(hr.data.table(TABLE, **OPTIONS))
    with pytest.raises(ValueError, match="leave label= and weight= out"):
        hr.data.table(TABLE, schema=schema, **OPTIONS)


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="a table must be a pyarrow Table"):
        hr.data.table([1, 2], batch_size=1)


def test_paths_that_match_nothing_are_named(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match="nothing"):
        hr.data.parquet(tmp_path / "nothing*.parquet", batch_size=1)


def test_folders_become_columns_unless_told_otherwise(tmp_path):
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"user": [day * 10]}), tmp_path / f"day={day}" / "a.parquet")
    assert rows_of(hr.data.parquet(tmp_path, batch_size=5)) == [
        {"user": [10], "day": [1]},
        {"user": [20], "day": [2]},
    ]
    assert rows_of(hr.data.parquet(tmp_path, batch_size=5, hive=False)) == [{"user": [10]}, {"user": [20]}]
    where = hr.data.parquet(tmp_path, batch_size=5, where=[("day", "==", 2)])
    assert rows_of(where) == [{"user": [20], "day": [2]}]


def test_pandas_columns_with_holes_follow_the_null_policies():
    frame = pd.DataFrame({"user": pd.array([1, None], "Int32"), "word": ["a", None], "flag": [True, False]})
    (batch,) = hr.data.table(frame, batch_size=2)
    assert batch.ids["user"].to_list() == [[1], [hr.data.NULL_ID]]
    assert batch.ids["word"].to_list()[1] == [hr.data.NULL_ID]
    assert batch.dense.tolist() == [[1.0], [0.0]]


def test_options_of_files_are_checked_too(tmp_path):
    pq.write_table(pa.table({"user": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="on_bad_file='ignore'; the choices are"):
        hr.data.parquet(tmp_path, batch_size=1, on_bad_file="ignore")
    with pytest.raises(TypeError, match=r"no option named colour here; there are .*retries"):
        hr.data.parquet(tmp_path, batch_size=1, colour=1)
    with pytest.raises(ValueError, match="retries are 0 or more"):
        hr.data.parquet(tmp_path, batch_size=1, retries=-1)


def test_columns_that_cannot_be_read_are_named(caplog):
    table = pa.table({"user": [1], "why": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    ds = hr.data.table(table, batch_size=1)
    assert "maps are not read" in ds.left_out["why"]
    assert "left_out(why)" in repr(ds)
    assert "why" in caplog.text
