"""What inspect says about files whose content is known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridrec.data.inspect import Column, Report, inspect

REAL = Path(os.environ.get("HYBRIDREC_DATA", Path(__file__).parents[3] / "shared/data"))


def report_of(path: Path, table: pa.Table, sample_rows: int = 100_000, **options) -> Report:
    pq.write_table(table, path / "a.parquet", **options)
    return inspect(path / "a.parquet", sample_rows)


def column_of(path: Path, array: pa.Array, **options) -> Column:
    return report_of(path, pa.table({"x": array}), **options).columns[0]


def test_rows_row_groups_sizes_and_compression_are_those_of_the_footers(tmp_path):
    table = pa.table({"a": range(1000), "b": [1.5] * 1000})
    report = report_of(tmp_path, table, row_group_size=300, compression="zstd")
    footer = pq.read_metadata(tmp_path / "a.parquet")
    chunks = [footer.row_group(g).column(c) for g in range(4) for c in range(2)]
    assert (report.rows, report.row_groups, report.group_rows) == (1000, 4, (100, 300))
    assert report.compression == ["zstd"]
    assert report.bytes == sum(chunk.total_compressed_size for chunk in chunks)
    assert report.raw_bytes == sum(column.raw_bytes for column in report.columns)
    assert sum(column.bytes for column in report.columns) == report.bytes
    assert "RLE_DICTIONARY" in report.columns[0].encodings


def test_null_shares_and_bounds_of_flat_columns_come_from_all_statistics(tmp_path):
    values = [1, None, 3] * 100 + [None] * 300 + [-7] * 300
    column = column_of(tmp_path, pa.array(values), row_group_size=100, sample_rows=10)
    assert column.nulls == pytest.approx(400 / 900)
    assert column.nulls_from == "statistics"
    assert (column.low, column.high) == (-7, 3)


def test_without_statistics_null_shares_come_from_the_rows(tmp_path):
    column = column_of(tmp_path, pa.array([1, None, None, 4]), write_statistics=False)
    assert (column.nulls, column.nulls_from) == (0.5, "all rows")
    assert column.low is None


def test_distinct_values_are_exact_when_all_rows_are_read(tmp_path):
    column = column_of(tmp_path, pa.array(["a", "b", None, "a"]))
    assert (column.distinct, column.distinct_from) == (2, "all rows")


def test_distinct_values_are_estimated_from_a_sample_beyond_it(tmp_path):
    values = np.random.default_rng(0).integers(0, 5000, 200_000)
    column = column_of(tmp_path, pa.array(values), row_group_size=1000, sample_rows=8000)
    assert column.distinct_from == "sample"
    assert column.distinct == pytest.approx(5000, rel=0.1)


def test_no_more_distinct_values_are_estimated_than_there_are_rows(tmp_path):
    values = pa.array(range(20_000), pa.float64())
    column = column_of(tmp_path, values, row_group_size=1000, sample_rows=2000)
    assert column.distinct_from == "sample"
    assert column.distinct == 20_000


def test_the_sample_is_bounded_and_spread_over_the_row_groups(tmp_path):
    table = pa.table({"x": [[g] * g for g in range(100) for _ in range(50)]})
    report = report_of(tmp_path, table, row_group_size=50, sample_rows=64)
    assert report.sampled_rows == 64
    assert report.columns[0].lengths is not None
    assert report.columns[0].lengths.max > 80


def test_list_lengths_have_mean_quantiles_and_a_histogram(tmp_path):
    lists = [[0] * n for n in range(101)] + [None] * 99
    column = column_of(tmp_path, pa.array(lists))
    lengths = column.lengths
    assert lengths is not None
    assert (lengths.mean, lengths.p50, lengths.p99, lengths.max) == (50.0, 50, 99, 100)
    assert sum(lengths.counts) == 101
    assert lengths.edges[0] == 0
    assert lengths.edges[-1] == 101
    assert lengths.counts[0] == lengths.edges[1]
    assert column.nulls == pytest.approx(99 / 200)


def test_nulls_inside_lists_are_shares_of_the_elements(tmp_path):
    column = column_of(tmp_path, pa.array([[1, None], None, [None, None], []]))
    assert column.nulls == 0.25
    assert column.element_nulls == 0.75
    assert column.distinct == 1


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[[1], []], None, [None, [2, 3]]]),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        pa.array([["a"], None], pa.large_list(pa.large_string())),
        pa.array([[{"k": 1}], []]),
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array(["a", None]).dictionary_encode(),
        pa.array([b"\xff\x00", None]),
        pa.array([1.5, float("nan"), float("inf")]),
        pa.array([1, None], pa.timestamp("ns", "UTC")),
        pa.array([None, None]),
        pa.array([True, None]),
        pa.array([1.5, 2.5], pa.float16()),
    ],
    ids=lambda array: str(array.type),
)
def test_every_type_can_be_shown_and_turned_into_json(tmp_path, array):
    column = column_of(tmp_path, array)
    assert column.nulls == pytest.approx(array.null_count / len(array))
    assert json.loads(json.dumps(inspect(tmp_path / "a.parquet").to_json(), allow_nan=False))["rows"] == len(array)


def test_struct_fields_have_dotted_names_and_their_own_bytes(tmp_path):
    users = pa.array([{"age": 3, "home": {"city": "x"}}, None, {"age": None, "home": None}])
    report = report_of(tmp_path, pa.table({"user": users}))
    assert [column.name for column in report.columns] == ["user.age", "user.home.city"]
    assert [column.nulls for column in report.columns] == pytest.approx([2 / 3, 2 / 3])
    assert all(column.bytes > 0 for column in report.columns)


def test_files_without_rows_or_without_columns_are_described(tmp_path):
    empty = report_of(tmp_path, pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.list_(pa.int8()))}))
    assert (empty.rows, len(empty.columns)) == (0, 2)
    assert empty.columns[1].lengths is None
    assert report_of(tmp_path, pa.table({})).columns == []


def test_several_files_are_counted_together_and_must_agree(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [3]}), tmp_path / "b.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert inspect(tmp_path).rows == inspect(tmp_path / "*.parquet").rows == 3
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: column 'a' is string, in .*a\.parquet it is int64"):
        inspect(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1 cut"])
def test_a_bad_file_is_named(tmp_path, content):
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.parquet is no readable Parquet file"):
        inspect(tmp_path / "bad.parquet")


def test_of_text_it_is_told_how_to_make_parquet(tmp_path):
    (tmp_path / "a.csv").write_text("user,click\n1,0\n")
    with pytest.raises(ValueError, match=r"a\.csv is no readable Parquet file: .*; hybridrec convert makes Parquet of"):
        inspect(tmp_path / "a.csv")


def test_a_damaged_row_group_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": np.random.default_rng(0).random(5000)}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.parquet, row group 0: "):
        inspect(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.parquet does not exist"):
        inspect(tmp_path / "nowhere.parquet")


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data sets are not beside the project")
def test_real_files_can_be_inspected():
    files = sorted(REAL.rglob("*.parquet"))
    for file in files:
        report = inspect(file)
        assert report.rows == pq.read_metadata(file).num_rows
        assert len(report.columns) >= len(pq.read_schema(file).names)
    assert files
