"""Random nested schemas and files, read in every way, against the rows they were made of."""

from __future__ import annotations

import decimal
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.data.arrow_types import element_type, fixed_size, is_list, list_depth
from tests.data.oracle import expected_rows, flat, rows_of, same


def whole(kind: pa.DataType, low: int, high: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    return kind, st.integers(low, high) | st.sampled_from([low, high])


LEAVES = [
    *(whole(getattr(pa, f"int{n}")(), -(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)),
    *(whole(getattr(pa, f"uint{bits}")(), 0, 2**bits - 1) for bits in (8, 16, 32, 64)),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats(width=64)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(9, 2), st.integers(-(10**7), 10**7).map(lambda n: n * decimal.Decimal("0.25"))),
    whole(pa.date32(), -(2**31), 2**31 - 1),
    whole(pa.time32("ms"), 0, 86_399_999),
    whole(pa.time64("us"), 0, 86_399_999_999),
    whole(pa.timestamp("ms"), -(2**40), 2**40),
    whole(pa.timestamp("us", "Europe/Zurich"), -(2**50), 2**50),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["", "a", "b", "ccc"])),
    (pa.dictionary(pa.int8(), pa.int64()), st.integers(-3, 3)),
]  # fmt: skip


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, nested up to three lists deep, and its values, null at every level."""
    kind, values = draw(st.sampled_from(LEAVES))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3]))):
        values = st.none() | values
        form = draw(st.sampled_from(["list", "list", "large", "fixed"]))
        if pa.types.is_dictionary(kind) and form == "fixed":
            form = "list"  # Parquet cannot write it
        if form == "fixed":
            size = draw(st.integers(1, 3))
            kind, values = pa.list_(kind, size), st.lists(values, min_size=size, max_size=size)
        else:
            kind = pa.list_(kind) if form == "list" else pa.large_list(kind)
            values = st.lists(values, max_size=4)
    return kind, st.none() | values


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[dict[str, Any]]]:
    """A table of random columns beside a row number, and the rows it was made of."""
    made = draw(st.lists(columns(), min_size=1, max_size=4))
    size = draw(st.integers(0, 40))
    named = {f"c{i}": pair for i, pair in enumerate(made)}
    rows = [{"row": i} | {name: draw(values) for name, (_, values) in named.items()} for i in range(size)]
    arrays = [pa.array([row[name] for row in rows], kind) for name, (kind, _) in named.items()]
    return pa.table([pa.array(range(size), pa.int64()), *arrays], names=["row", *named]), rows


def tolerant(schema: hr.data.Schema) -> hr.data.Schema:
    """The schema with a default wherever a null would be an error."""
    for feature in schema:
        if feature.null == "error" and feature.kind == "extra":
            schema = schema.edit(feature.name, default=decimal.Decimal(7) if _decimal(feature.type) else 7)
    return schema


def _decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(element_type(kind))


def write(table: pa.Table, folder: Path, cuts: list[int], group_rows: int) -> None:
    """The rows in one file for each stretch between cuts."""
    ends = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    for i, (start, stop) in enumerate(itertools.pairwise(ends)):
        pq.write_table(table.slice(start, stop - start), folder / f"{i}.parquet", row_group_size=group_rows)


how = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 17),
        "threads": st.integers(1, 3),
        "prefetch": st.integers(1, 3),
        "memory": st.sampled_from([1 << 20, 1 << 28]),
    }
)
random_data = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check_every_way(ds: hr.data.Dataset, rows: list[dict[str, Any]], draw: Any) -> None:
    ds = ds.with_schema(tolerant(ds.schema))
    expected = expected_rows(rows, ds.schema)
    got = list(ds)
    assert all(len(batch) == ds.batch_size for batch in got[:-1])
    assert same(rows_of(got), expected)

    mixed = rows_of(ds.shuffle(seed=draw(st.integers(0, 9)), rows=draw(st.integers(1, 50)), lanes=2))
    assert same(sorted(mixed, key=lambda row: row["row"]), expected)

    few = draw(st.integers(0, len(rows)))
    kept = ds.where(pc.field("row") < few)
    assert same(rows_of(kept), expected[:few])

    world = draw(st.integers(1, 5))
    shards = [list(ds.shard(rank, world)) for rank in range(world)]
    assert len({len(shard) for shard in shards}) == 1
    assert same(flat(rows_of(shard) for shard in shards), expected)
    steps = zip(*(ds.shard(rank, world, by="batch") for rank in range(world)), strict=True)
    assert same([flat(rows_of([batch]) for batch in step) for step in steps], [rows_of([b]) for b in got])


@given(tables(), how, st.lists(st.integers(0, 40), max_size=2), st.integers(1, 40), st.data())
@random_data
def test_random_parquet_files_give_their_rows(made, how, cuts, group_rows, data):
    table, rows = made
    with tempfile.TemporaryDirectory() as folder:
        write(table, Path(folder), cuts, group_rows)
        check_every_way(hr.data.parquet(folder, **how), rows, data.draw)


@given(tables(), how, st.integers(0, 10), st.integers(0, 40), st.data())
@random_data
def test_random_slices_of_tables_give_their_rows(made, how, start, length, data):
    table, rows = made
    part, rows = table.slice(start, length), rows[start : start + length]
    rows = [row | {"row": row["row"]} for row in rows]
    ds = hr.data.table(part, **how)
    if start == 0:
        check_every_way(ds, rows, data.draw)
    ds = ds.with_schema(tolerant(ds.schema))
    assert same(rows_of(ds), expected_rows(rows, ds.schema))


def test_the_random_types_reach_every_kind_and_depth():
    kinds = {hr.data.Schema.infer(pa.schema({"x": kind}))["x"].kind for kind, _ in LEAVES}
    assert kinds == {"id", "dense", "extra"}
    assert is_list(pa.list_(pa.int8(), 2))
    assert (fixed_size(pa.list_(pa.int8(), 2)), list_depth(pa.list_(pa.list_(pa.int8())))) == (2, 2)
