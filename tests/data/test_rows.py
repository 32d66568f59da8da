from __future__ import annotations

import datetime as dt
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from hybridrec.data.effort import Effort
from hybridrec.data.formats import TableSource
from hybridrec.data.rows import RowSet
from hybridrec.data.schema import Schema
from tests.data.oracle import flat, rows_of, users

ROWS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of several row groups, the rows numbered through in the order of days."""
    made = tmp_path_factory.mktemp("rows")
    table = pa.table({"user": range(ROWS), "day": [i // 100 for i in range(ROWS)]})
    for i, (start, stop) in enumerate([(0, 300), (300, 350), (350, ROWS)]):
        pq.write_table(table.slice(start, stop - start), made / f"{i}.parquet", row_group_size=64)
    return made


@pytest.fixture
def ds(folder):
    return hr.data.parquet(folder, batch_size=37)


def read(ds) -> list[int]:
    return flat(users(ds))


def test_where_gives_the_rows_that_match_in_batches_of_exact_size(ds):
    kept = ds.where(pc.field("day").isin([2, 5, 9]))
    expected = [i for i in range(ROWS) if i // 100 in (2, 5, 9)]
    assert read(kept) == expected
    assert [len(batch) for batch in kept] == [37] * 8 + [4]
    assert (kept.num_rows, len(kept)) == (300, 9)


def test_where_as_an_option_and_as_a_step_are_one(folder, ds):
    where = [("user", ">=", 990)]
    assert read(hr.data.parquet(folder, batch_size=37, where=where)) == read(ds.where(where)) == list(range(990, 1000))


def test_filters_add_up(ds):
    assert read(ds.where([("user", "<", 500)]).where([("user", ">", 490)])) == list(range(491, 500))
    assert read(ds.where([("user", "<", 0)])) == []


def test_where_sees_columns_that_are_not_selected(ds):
    assert read(ds.select(["user"]).where([("day", "==", 9)])) == list(range(900, 1000))


def test_unknown_columns_in_a_filter_are_named(ds):
    with pytest.raises(ValueError, match="unknown column 'dya'; the columns are user, day"):
        ds.where([("dya", "==", 9)])


@pytest.mark.parametrize("at", [0.1, 0.5, 0.999, 0.0001])
def test_a_split_by_fraction_cuts_the_file_order(ds, at):
    first, second = ds.split(at)
    border = round(ROWS * at)
    assert read(first) == list(range(border))
    assert read(second) == list(range(border, ROWS))


def test_a_split_at_random_is_a_split_and_a_function_of_the_seed(folder, ds):
    first, second = ds.split(0.8, seed=1)
    one, two = read(first), read(second)
    assert sorted([*one, *two]) == list(range(ROWS))
    assert 740 < len(one) < 860
    assert one == read(hr.data.parquet(folder, batch_size=5, threads=1).split(0.8, seed=1)[0])
    assert one != read(ds.split(0.8, seed=2)[0])
    assert set(read(ds.split(0.5, seed=1)[0])) < set(one)


def test_splits_of_filters_and_of_splits_stay_disjoint(ds):
    part = ds.where([("day", "!=", 4)])
    first, second = part.split(0.5)
    third, fourth = second.split(0.25, seed=3)
    assert sorted(read(first) + read(third) + read(fourth)) == [i for i in range(ROWS) if i // 100 != 4]


def test_a_split_by_a_column_sends_lower_values_first(ds):
    first, second = ds.split(7, by="day")
    assert (read(first), read(second)) == (list(range(700)), list(range(700, ROWS)))


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (pa.timestamp("ms", "UTC"), dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)),
        (pa.timestamp("us"), "1970-01-01 00:00:05"),
        (pa.timestamp("s"), dt.datetime(1970, 1, 1, 0, 0, 5)),
        (pa.date32(), dt.date(1970, 1, 6)),
        (pa.date32(), "1970-01-06"),
        (pa.float32(), 4.5),
        (pa.int8(), 5),
        (pa.string(), "5"),
    ],
    ids=str,
)
def test_a_split_takes_values_of_the_columns_type(kind, at):
    if pa.types.is_timestamp(kind):
        scale = {"s": 1, "ms": 10**3, "us": 10**6}[kind.unit]
        at_column = pa.array([i * scale for i in range(10)], kind)
    else:
        at_column = pa.array([str(i) for i in range(10)] if kind == pa.string() else range(10), kind)
    ds = hr.data.table(pa.table({"user": range(10), "at": at_column}), batch_size=10)
    first, second = ds.split(at, by="at")
    assert (read(first), read(second)) == (list(range(5)), list(range(5, 10)))


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_rows_that_belong_to_neither_side_are_an_error(hole):
    ds = hr.data.table({"at": pa.array([1.0, hole, 3.0])}, batch_size=2)
    with pytest.raises(ValueError, match="split by 'at': 1 rows have a null or NaN there"):
        ds.split(2.0, by="at")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at": 1.5}, "a fraction between 0 and 1"),
        ({"at": 0}, "a fraction between 0 and 1"),
        ({"at": "now"}, "a fraction between 0 and 1"),
        ({"at": 3, "by": "dya"}, "no column named 'dya'; the data has user, day"),
        ({"at": "soon", "by": "day"}, "'soon' is no value of its type int64"),
    ],
)
def test_splits_that_make_no_sense_are_refused(ds, arguments, message):
    with pytest.raises(ValueError, match=message):
        ds.split(**arguments)


def test_selected_rows_survive_pickling(ds):
    for made in (
        ds.where([("day", "==", 3)]),
        ds.split(0.5)[1],
        ds.split(0.5, seed=1)[0],
        ds.split(4, by="day")[0],
    ):
        assert read(pickle.loads(pickle.dumps(made))) == read(made)


def test_the_fingerprint_tells_rows_apart_and_nothing_else(folder, ds):
    def mark(ds):
        return ds._rows.fingerprint()

    many = [("user", "in", [*range(40), 77])]
    other = [("user", "in", [*range(40), 78])]
    marks = [
        mark(ds),
        *(mark(ds.where(w)) for w in (many, other)),
        mark(ds.split(0.5)[0]),
        mark(ds.split(0.5)[1]),
    ]
    assert len(set(marks)) == 5
    assert mark(ds.where(many)) == mark(hr.data.parquet(folder, batch_size=2, where=many))
    assert mark(ds.select(["day"])) == mark(ds)


def effort(memory=1 << 28, threads=2):
    return Effort(threads, 2, memory)


def test_the_size_of_a_row_counts_joined_columns():
    table = pa.table({"user": range(2000)})
    history = pa.table({"user": range(2000), "seen": [[i] * 500 for i in range(2000)]})
    plain = hr.data.table(table, batch_size=10)
    joined = plain.join(history, on="user")
    sizes = [d._rows.reading(d.schema, effort()).row_bytes for d in (plain, joined)]
    assert sizes[0] < 100 < 4000 < sizes[1]


def test_the_size_of_a_row_and_of_a_chunk_count_restored_rows():
    blocks = pa.table({"at": [[0] * 1000] * 50, "tags": [[[7] * 100]] * 50})
    ds = hr.data.table(blocks, batch_size=10).restore({"at": ["tags"]})
    reading = ds._rows.reading(ds.schema, effort())
    assert reading.row_bytes > 800
    assert reading.chunk_rows * 1000 * reading.row_bytes < 64 << 20


def test_chunks_cover_a_group_and_do_not_depend_on_effort(ds):
    readings = [ds._rows.reading(ds.schema, effort(m, t)) for m, t in ((1, 1), (1 << 30, 8))]
    assert len({reading.chunk_rows for reading in readings}) == 1
    for group, stored in enumerate(ds._rows.source.groups):
        borders = readings[0].borders(group)
        assert (borders[0], borders[-1]) == (0, stored.rows)
        assert np.all(np.diff(borders) > 0)


def test_only_columns_in_use_are_read(ds):
    asked = []

    class Spy(TableSource):
        def open(self, group, columns, *more):
            asked.append(list(columns))
            return super().open(group, columns, *more)

    source = Spy(pa.table({"user": [1, 2], "day": [1, 2], "other": [1, 2]}))
    schema = Schema.infer(source.schema).select(["day"])
    made = hr.data.Dataset(RowSet(source), schema, effort(), 2)
    assert rows_of(made) == [{"day": [1]}, {"day": [2]}]
    assert {tuple(columns) for columns in asked} == {("day",)}
