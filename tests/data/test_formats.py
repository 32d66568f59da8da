"""CSV, Arrow IPC and tables in memory keep the contract of a source."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from hybridrec.data.formats import CsvOptions, CsvSource, IpcSource, TableSource, as_table
from hybridrec.data.parquet_source import ParquetSource
from hybridrec.data.source import BadFile

TABLE = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "price": pa.array([None if i % 9 == 0 else i / 4 for i in range(1000)], pa.float64()),
        "city": pa.array([None if i % 7 == 0 else f"c{i % 13}" for i in range(1000)]),
    }
)


def csv_file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def ipc_stream(table: pa.Table, path: Path) -> str:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return str(path)


def build(kind: str, folder: Path) -> Any:
    """A source of one kind over TABLE."""
    if kind == "parquet":
        pq.write_table(TABLE, folder / "t.parquet", row_group_size=300)
        return ParquetSource(folder)
    if kind == "csv":
        TABLE.to_pandas().to_csv(folder / "t.csv", index=False)
        return CsvSource(folder)
    if kind == "tsv.gz":
        TABLE.to_pandas().to_csv(folder / "t.tsv.gz", index=False, sep="\t")
        return CsvSource(folder)
    if kind == "feather":
        pa.feather.write_feather(TABLE, folder / "t.feather", chunksize=300, compression="zstd")
        return IpcSource(folder)
    if kind == "stream":
        ipc_stream(TABLE, folder / "t.arrows")
        return IpcSource(folder)
    if kind == "dictionary":
        encoded = TABLE.set_column(2, "city", TABLE["city"].dictionary_encode())
        pa.feather.write_feather(encoded, folder / "t.arrow", chunksize=300)
        return IpcSource(folder)
    if kind == "pandas":
        frame = TABLE.to_pandas()
        return TableSource(frame.set_index(frame["id"].to_numpy()), group_rows=300)
    if kind == "polars":
        return TableSource(pl.from_arrow(TABLE), group_rows=300)
    batches = TABLE.to_batches(max_chunksize=170)
    return TableSource(batches if kind == "batches" else pa.Table.from_batches(batches), group_rows=300)


KINDS = [
    "parquet",
    "csv",
    "tsv.gz",
    "feather",
    "stream",
    "dictionary",
    "table",
    "batches",
    "pandas",
    "polars",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_keeps_the_same_contract(kind: str, tmp_path: Path):
    source = build(kind, tmp_path)
    assert source.schema == TABLE.schema
    assert sum(group.rows for group in source.groups) == 1000
    assert source.left_out == {}
    assert source.bad == []
    for chunk_rows in (64, 300, 5000):
        read = []
        for group in range(len(source.groups)):
            sizes = []
            for chunk in source.open(group, ["city", "id", "price"], chunk_rows, column_threads=True):
                assert chunk.schema.names == ["city", "id", "price"]
                sizes.append(chunk.num_rows)
                read.append(chunk.cast(pa.schema([TABLE.schema.field(name) for name in chunk.schema.names])))
            assert all(size == chunk_rows for size in sizes[:-1])
            assert sum(sizes) == source.groups[group].rows
        assert pa.Table.from_batches(read).select(TABLE.schema.names).combine_chunks() == TABLE
    where = (pc.field("id") > 500) & (pc.field("city") == "c3")
    mask = np.concatenate([source.mask(group, where) for group in range(len(source.groups))])
    assert TABLE["id"].filter(pa.array(mask)).to_pylist() == TABLE.filter(where)["id"].to_pylist()
    assert {g for g in range(len(source.groups)) if source.mask(g, where).any()} <= source.prune(where)
    assert [chunk.num_rows for chunk in source.open(0, [], 200)] == [200] * (source.groups[0].rows // 200) + [
        rest for rest in [source.groups[0].rows % 200] if rest
    ]
    assert source.absent(0) == set()
    assert "row" in source.describe(0)
    with pytest.raises(ValueError, match="unknown column 'nope'; the columns are id, price, city"):
        source.open(0, ["nope"], 10)
    with pytest.raises(ValueError, match="chunk_rows=0"):
        source.open(0, ["id"], 0)
    with pytest.raises(ValueError, match="unknown column 'nope'"):
        source.prune(pc.field("nope") == 1)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint == source.fingerprint
    assert next(copy.open(0, ["id"], 7)).to_pydict() == {"id": list(range(7))}


def test_csv_without_header_takes_its_column_names(tmp_path: Path):
    path = csv_file(tmp_path / "a.csv", "1|x\n2|y\n")
    source = CsvSource(path, CsvOptions(delimiter="|", header=False, column_names=["n", "s"]))
    assert next(source.open(0, ["s", "n"], 10)).to_pydict() == {"s": ["x", "y"], "n": [1, 2]}
    with pytest.raises(ValueError, match="header=False needs column_names="):
        CsvOptions(header=False)


def test_csv_column_names_rename_a_header(tmp_path: Path):
    path = csv_file(tmp_path / "a.csv", "old,names\n1,x\n")
    source = CsvSource(path, CsvOptions(column_names=["n", "s"]))
    assert next(source.open(0, ["n", "s"], 10)).to_pydict() == {"n": [1], "s": ["x"]}


def test_csv_types_can_be_stated_and_an_unknown_one_is_refused(tmp_path: Path):
    path = csv_file(tmp_path / "a.csv", "n,s\n1,007\n")
    source = CsvSource(path, CsvOptions(types={"s": pa.string(), "n": pa.int8()}))
    assert source.schema == pa.schema({"n": pa.int8(), "s": pa.string()})
    assert next(source.open(0, ["s"], 10)).to_pydict() == {"s": ["007"]}
    with pytest.raises(ValueError, match="unknown column 'q'; the columns are n, s"):
        CsvSource(path, CsvOptions(types={"q": pa.string()}))


def test_csv_nulls_are_empty_fields_and_a_quoted_empty_string_is_a_string(tmp_path: Path):
    path = csv_file(tmp_path / "a.csv", 'n,s\n1,\n,""\n3,NA\n4,\\N\n')
    read = next(CsvSource(path).open(0, ["n", "s"], 10)).to_pydict()
    assert read == {"n": [1, None, 3, 4], "s": [None, "", "NA", None]}


def test_csv_files_agree_on_fractions_and_fill_untyped_columns(tmp_path: Path):
    csv_file(tmp_path / "a.csv", "x,y\n1,\n2,\n")
    csv_file(tmp_path / "b.csv", "x,y\n1.5,z\n")
    csv_file(tmp_path / "c.csv", "x\n")
    source = CsvSource(tmp_path)
    assert source.schema == pa.schema({"x": pa.float64(), "y": pa.string()})
    chunks = [next(source.open(group, ["y", "x"], 10)) for group in range(2)]
    assert chunks[0].to_pydict() == {"y": [None, None], "x": [1.0, 2.0]}
    assert chunks[1].to_pydict() == {"y": ["z"], "x": [1.5]}
    assert [group.file for group in source.groups] == [0, 1]


def test_csv_ids_beyond_int64_keep_all_their_digits(tmp_path: Path):
    csv_file(tmp_path / "a.csv", "id,x,y\n18446744073709551327,1e19,18446744073709551615\n,1.5,0.5\n")
    csv_file(tmp_path / "b.csv", "id,x,y\n7,2,3\n")
    source = CsvSource(tmp_path)
    assert source.schema == pa.schema({"id": pa.uint64(), "x": pa.float64(), "y": pa.float64()})
    read = [next(source.open(group, ["id"], 10))["id"].to_pylist() for group in range(2)]
    assert read == [[18446744073709551327, None], [7]]


def test_csv_files_that_disagree_are_refused(tmp_path: Path):
    csv_file(tmp_path / "a.csv", "x\n1\n")
    csv_file(tmp_path / "b.csv", "x\nz\n")
    with pytest.raises(ValueError, match=r"b\.csv: column 'x' is string, but .*a\.csv has it as int64"):
        CsvSource(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x,x\n1,2\n", "column 'x' appears twice"),
        ("x,y\n1,2,3\n", "Expected 2 columns, got 3"),
        ("x\n" + "1\n" * 600_000 + "oops\n", "state it with types="),
        ("", "Empty CSV file"),
    ],
)
def test_a_bad_csv_file_is_named_or_skipped(tmp_path: Path, text: str, reason: str):
    good = csv_file(tmp_path / "a.csv", "x\n1\n")
    bad = csv_file(tmp_path / "b.csv", text)
    with pytest.raises(BadFile, match=reason) as raised:
        CsvSource([good, bad])
    assert bad in str(raised.value)
    assert [name for name, _ in CsvSource([good, bad], on_bad_file="skip").bad] == [bad]


def test_a_csv_file_that_shrinks_or_vanishes_after_indexing_is_an_error(tmp_path: Path):
    path = csv_file(tmp_path / "a.csv", "x\n1\n2\n")
    source = CsvSource(path)
    csv_file(tmp_path / "a.csv", "x\n1\n")
    with pytest.raises(BadFile, match="1 rows were read, 2 are announced"):
        list(source.open(0, ["x"], 10))
    os.remove(path)
    with pytest.raises(BadFile, match="does not exist"):
        list(source.open(0, ["x"], 10))


def test_csv_folder_values_become_columns(tmp_path: Path):
    (tmp_path / "day=4").mkdir()
    with gzip.open(tmp_path / "day=4" / "a.csv.gz", "wt") as handle:
        handle.write("x\n1\n")
    assert next(CsvSource(tmp_path).open(0, ["day", "x"], 10)).to_pydict() == {"day": [4], "x": [1]}


def test_ipc_batches_are_groups_and_a_stream_is_one(tmp_path: Path):
    pa.feather.write_feather(TABLE, tmp_path / "a.arrow", chunksize=400)
    assert [group.rows for group in IpcSource(tmp_path / "a.arrow").groups] == [400, 400, 200]
    assert [group.rows for group in IpcSource(ipc_stream(TABLE, tmp_path / "b.arrows")).groups] == [1000]


@pytest.mark.parametrize("form", ["file", "stream"])
def test_ipc_structs_are_flattened_and_only_their_column_is_read(tmp_path: Path, form: str):
    table = pa.table({"big": [b"x" * 1000] * 3, "user": [{"age": 1}, None, {"age": 3}]})
    path = tmp_path / "a.arrow"
    if form == "file":
        pa.feather.write_feather(table, path)
    else:
        ipc_stream(table, path)
    source = IpcSource(path)
    assert source.schema.names == ["big", "user.age"]
    assert next(source.open(0, ["user.age"], 10)).to_pydict() == {"user.age": [1, None, 3]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"FEA1 and more", "Feather V1"),
        (b"", "schema message"),
        (b"hello world", "bytes"),
        (b"ARROW1..", "too small"),
    ],
)
def test_a_bad_ipc_file_is_named(tmp_path: Path, content: bytes, reason: str):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=reason) as raised:
        IpcSource(path)
    assert str(path) in str(raised.value)


def test_a_truncated_ipc_file_and_one_cut_later_are_errors(tmp_path: Path):
    path = tmp_path / "a.arrow"
    pa.feather.write_feather(TABLE, path, chunksize=100)
    source = IpcSource(path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(BadFile, match=r"a\.arrow, row group 5: it had .* bytes when indexed"):
        list(source.open(5, ["id"], 10))
    with pytest.raises(BadFile, match=r"a\.arrow: "):
        IpcSource(path)


def test_a_truncated_ipc_stream_is_an_error(tmp_path: Path):
    path = ipc_stream(TABLE, tmp_path / "a.arrows")
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(BadFile, match=r"a\.arrows: "):
        IpcSource(path)


def test_a_table_is_sliced_and_not_copied():
    table = pa.table({"x": np.arange(1000)})
    chunk = list(TableSource(table, group_rows=400).open(1, ["x"], 100))[1]
    assert chunk.column(0).to_pylist() == list(range(500, 600))
    assert chunk.column(0).buffers()[1].address == table["x"].chunk(0).buffers()[1].address


def test_a_table_with_structs_and_dictionaries_keeps_the_plain_schema():
    table = pa.table({"u": [{"a": 1}, None], "s": pa.array(["x", "y"]).dictionary_encode()})
    source = TableSource(table)
    assert source.schema == pa.schema({"u.a": pa.int64(), "s": pa.string()})
    assert next(source.open(0, ["s", "u.a"], 10)).to_pydict() == {"s": ["x", "y"], "u.a": [1, None]}
    assert source.mask(0, pc.field("s") == "y").tolist() == [False, True]


def test_an_empty_table_has_no_groups():
    assert TableSource(TABLE.slice(0, 0)).groups == []


def test_a_table_source_knows_other_data_by_its_fingerprint():
    assert TableSource(TABLE).fingerprint == TableSource(TABLE.to_pandas()).fingerprint
    changed = TABLE.set_column(0, "id", pa.array(range(1, 1001), pa.int64()))
    assert TableSource(changed).fingerprint != TableSource(TABLE).fingerprint
    assert TableSource(TABLE.slice(1)).fingerprint != TableSource(TABLE).fingerprint


def test_a_pandas_index_is_no_column_and_other_objects_are_refused():
    assert as_table(pd.DataFrame({"x": [1]}, index=pd.Index([7], name="key"))).column_names == ["x"]
    assert as_table(TABLE.to_batches()[0]).num_rows == 1000
    with pytest.raises(TypeError, match="or a dict of columns, got set"):
        as_table({1, 2})


@pytest.mark.parametrize(
    ("columns", "error", "told"),
    [
        ({"user": 7, "age": 30.0}, TypeError, r"column 'user' is 7; it must have a value for each row, such as \[7\]"),
        ({"word": "abc"}, TypeError, r"column 'word' is 'abc'; .*such as \['abc'\]"),
        ({"user": [1, "a"]}, ValueError, "column 'user' cannot be read: .*'a' with type str"),
        ({1: [7]}, TypeError, "a column's name must be a string, got 1"),
        ({"user": [1], "age": [1, 2]}, ValueError, "named age expected length 1 but got length 2"),
    ],
)
def test_a_dict_that_is_no_table_is_told_by_its_column(columns: dict[Any, Any], error: type[Exception], told: str):
    with pytest.raises(error, match=told):
        as_table(columns)
