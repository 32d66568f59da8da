"""Tables as Arrow files, for us and for other tools."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding import RowData
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train.checkpoint import open_table
from hybridrec.train.checkpoint.part_info import PartInfo
from hybridrec.train.checkpoint.saved_table import SavedTable
from hybridrec.train.checkpoint.table_file import write_table
from hybridrec.train.checkpoint.table_info import TableInfo

RULE = RowRule("adagrad", (StateColumn("sum"), StateColumn("mean", per_row=True)))


def made(count: int, dim: int = 3, dtype: torch.dtype = torch.float32, scores: bool = True) -> RowData:
    """Rows in no order, with the extremes among their ids."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    ids[:2] = torch.tensor([2**63 - 1, -(2**63)])[:count]
    rows = torch.randn(count, dim, generator=generator).to(dtype)
    state = {"sum": torch.rand(count, dim, generator=generator), "mean": torch.rand(count, generator=generator)}
    marks = torch.arange(count)
    return RowData(ids, rows, state, marks if scores else None, marks + 5 if scores else None)


def info(data: RowData) -> TableInfo:
    kind = str(data.rows.dtype).removeprefix("torch.")
    part = PartInfo("a.arrow", len(data.ids))
    return TableInfo(data.rows.shape[1], kind, None, 10**6, 0, 0, RULE, {}, (part,))


def read(path: Path, data: RowData) -> RowData:
    """The only chunk of a file."""
    [found] = SavedTable(path.parent, info(data)).chunks()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 7, 1000])
@pytest.mark.parametrize("scores", [True, False])
def test_rows_come_back_bit_by_bit_and_in_their_order(count, dtype, scores, tmp_path):
    data = made(count, dtype=dtype, scores=scores)
    assert write_table(tmp_path / "a.arrow", [data]) == count
    found = read(tmp_path / "a.arrow", data)
    assert found.rows.dtype == dtype
    for mine, theirs in (
        (data.ids, found.ids),
        (data.rows, found.rows),
        *zip(data.state.values(), found.state.values(), strict=True),
    ):
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)
    assert (found.touched is None, found.counts is None) == (not scores, not scores)
    assert not scores or (torch.equal(found.touched, data.touched) and torch.equal(found.counts, data.counts))


@given(count=st.integers(0, 20), dim=st.integers(1, 70))
def test_any_shape_comes_back(count, dim, tmp_path_factory):
    path, data = tmp_path_factory.mktemp("any") / "a.arrow", made(count, dim)
    write_table(path, [data])
    assert torch.equal(read(path, data).rows, data.rows)


def test_chunks_come_back_as_they_were_written(tmp_path):
    parts = [made(count) for count in (5, 0, 9)]
    assert write_table(tmp_path / "a.arrow", parts) == 14
    found = SavedTable(tmp_path, dataclasses.replace(info(parts[0]), parts=(PartInfo("a.arrow", 14),)))
    assert [part.ids.tolist() for part in found.chunks()] == [
        parts[0].ids.tolist(),
        parts[2].ids.tolist(),
    ]


def test_nan_inf_and_negative_zero_keep_their_bits(tmp_path):
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000], dtype=torch.int32)
    data = made(1)._replace(rows=bits.view(torch.float32)[None])
    write_table(tmp_path / "a.arrow", [data])
    assert torch.equal(read(tmp_path / "a.arrow", data).rows[0].view(torch.int32), bits)


def test_what_is_read_lies_in_the_file_and_writing_to_it_leaves_the_file(tmp_path):
    data = made(1000)
    write_table(tmp_path / "a.arrow", [data])
    before = (tmp_path / "a.arrow").read_bytes()
    read(tmp_path / "a.arrow", data).rows.zero_()
    assert (tmp_path / "a.arrow").read_bytes() == before


def test_a_file_of_other_rows_than_the_manifest_says_is_an_error(tmp_path):
    write_table(tmp_path / "a.arrow", [made(5)])
    with pytest.raises(ValueError, match=r"a.arrow has 5 rows, and the manifest says 6"):
        SavedTable(tmp_path, info(made(6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_polars_opens_it_as_it_is(dtype, tmp_path):
    data = made(10, dtype=dtype)
    write_table(tmp_path / "a.arrow", [data])
    frame = pl.read_ipc(tmp_path / "a.arrow")
    assert frame.columns == ["id", "row", "sum", "mean", "touched", "count"]
    assert frame["id"].to_list() == data.ids.tolist()
    assert np.array_equal(frame["row"].cast(pl.Array(pl.Float32, 3)).to_numpy(), data.rows.float().numpy())
    assert frame["touched"].to_list() == list(range(10))
    lazily = pl.scan_ipc(tmp_path / "a.arrow").filter(pl.col("touched") > 7).select("id").collect()
    assert lazily["id"].to_list() == data.ids[8:].tolist()


def test_pandas_opens_it_through_pyarrow(tmp_path):
    data = made(10)
    write_table(tmp_path / "a.arrow", [data])
    frame = open_table(tmp_path / "a.arrow").to_pandas()
    assert frame["id"].tolist() == data.ids.tolist()
    assert frame["row"][3].tolist() == data.rows[3].tolist()


def test_duckdb_opens_it_through_pyarrow(tmp_path):
    if importlib.util.find_spec("duckdb") is None:
        pytest.skip("duckdb is not installed")
    import duckdb

    data = made(10)
    write_table(tmp_path / "a.arrow", [data])
    rows = open_table(tmp_path / "a.arrow")
    assert isinstance(rows, pa.Table)
    found = duckdb.sql("select id, row[1] from rows where touched > 7 order by touched").fetchall()
    assert found == [(int(data.ids[place]), float(data.rows[place, 0])) for place in (8, 9)]
