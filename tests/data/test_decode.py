from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

import hybridrec as hr
from hybridrec.data import (
    NULL_ID,
    Bucketize,
    Clip,
    Hash,
    IsIn,
    Log1p,
    Modulo,
    Standardize,
    Truncate,
    Vocabulary,
)
from tests.data.oracle import as_id, equal_batches, rows_of, same

LIST = pa.list_(pa.int64())
D = decimal.Decimal


def one_batch(columns, edits=(), label=(), weight=None, rows=1000):
    """All rows of a table in one batch, under a schema with some edits."""
    ds = hr.data.table(pa.table(columns), batch_size=rows, label=label, weight=weight)
    schema = ds.schema
    for name, changes in dict(edits).items():
        schema = schema.edit(name, **changes)
    (batch,) = ds.with_schema(schema)
    return batch


def hashed(text: str) -> int:
    return as_id(text)


# -- every type ----------------------------------------------------------------------------------------------

IDS = [
    *((getattr(pa, f"int{n}")(), [-(2 ** (n - 1)), 0, 2 ** (n - 1) - 1]) for n in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{n}")(), [0, 1, 2**n - 1]) for n in (8, 16, 32, 64)),
    (pa.string(), ["", "Zürich", "a" * 40]),
    (pa.large_string(), ["", "a", "b"]),
    (pa.binary(), [b"", b"\x00\xff", b"abc"]),
    (pa.large_binary(), [b"", b"\x00\xff", b"abc"]),
    (pa.binary(2), [b"ab", b"cd", b"\x00\x00"]),
    (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "b"]),
    (pa.dictionary(pa.int32(), pa.large_string()), ["b", "a", "b"]),
    (pa.dictionary(pa.uint16(), pa.int64()), [5, -5, 5]),
]
NUMBERS = [
    (pa.float16(), [0.5, -65504.0, float("inf")]),
    (pa.float32(), [1e-45, -3.5, float("nan")]),
    (pa.float64(), [1e300, 0.1, -0.0]),
    (pa.bool_(), [True, False, True]),
    (pa.decimal128(20, 3), [D("1.125"), D("-99999999999999999.999"), D("0.001")]),
    (pa.decimal256(40, 1), [D("1.5"), D("-2.5"), D("0.1")]),
]
TIMES = [
    (pa.date32(), [0, -1, 19000]),
    (pa.date64(), [0, -86_400_000, 86_400_000]),
    (pa.time32("ms"), [0, 1, 86_399_999]),
    (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
    (pa.timestamp("s"), [0, -1, 2**33]),
    (pa.timestamp("us", "Asia/Tokyo"), [0, -1, 2**50]),
    (pa.duration("ms"), [0, -1, 2**40]),
]
WRAPS = {
    "plain": (lambda kind: kind, lambda values: values),
    "list": (pa.list_, lambda values: [values, [], values[:1]]),
    "large_list": (pa.large_list, lambda values: [values, [], values[:1]]),
    "fixed_size_list": (lambda kind: pa.list_(kind, 2), lambda values: [values[:2], values[1:], values[:2]]),
}


def stored(kind, values, tmp_path, where):
    """A dataset over one column, in memory, in Parquet, or in Arrow IPC, read in batches of two."""
    table = pa.table({"x": pa.array(values, kind)})
    if where == "memory":
        return hr.data.table(table, batch_size=2)
    if where == "slice":
        return hr.data.table(pa.concat_tables([table, table]).combine_chunks().slice(len(values)), batch_size=2)
    if where == "ipc":
        with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
            file.write_table(table)
        return hr.data.ipc(tmp_path / "x.arrow", batch_size=2)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    return hr.data.parquet(tmp_path / "x.parquet", batch_size=2)


@pytest.mark.parametrize("where", ["memory", "slice", "ipc", "parquet"])
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(("kind", "values"), IDS, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
def test_whole_numbers_and_text_of_every_type_become_ids(kind, values, wrap, where, tmp_path):
    if where == "parquet" and pa.types.is_dictionary(kind) and wrap == "fixed_size_list":
        pytest.skip("pyarrow cannot write fixed-size lists of dictionaries to Parquet")
    outer, nest = WRAPS[wrap]
    ds = stored(outer(kind), nest(values), tmp_path, where)
    expected = [[as_id(item) for item in (row if isinstance(row, list) else [row])] for row in nest(values)]
    assert [row["x"] for row in rows_of(ds)] == expected


@pytest.mark.parametrize("where", ["memory", "slice", "ipc", "parquet"])
@pytest.mark.parametrize("wrap", ["plain", "fixed_size_list"])
@pytest.mark.parametrize(("kind", "values"), NUMBERS, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
def test_numbers_of_every_type_become_dense(kind, values, wrap, where, tmp_path):
    outer, nest = WRAPS[wrap]
    ds = stored(outer(kind), nest(values), tmp_path, where)
    got = torch.cat([batch.dense for batch in ds])
    with np.errstate(over="ignore"):
        expected = np.array(nest(values), np.float64).astype(np.float32).reshape(len(values), -1)
    assert np.array_equal(got.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("where", ["memory", "slice", "ipc", "parquet"])
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(("kind", "values"), TIMES, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
def test_times_of_every_type_travel_as_integers(kind, values, wrap, where, tmp_path):
    outer, nest = WRAPS[wrap]
    ds = stored(outer(kind), nest(values), tmp_path, where)
    unit = 1
    if where == "parquet":  # which has no seconds, and dates only as days
        unit = {pa.timestamp("s"): 1000, pa.date64(): 1 / 86_400_000}.get(kind, 1)

    def scaled(value):
        return [scaled(item) for item in value] if isinstance(value, list) else int(value * unit)

    assert [row["x"] for row in rows_of(ds)] == [scaled(row) for row in nest(values)]


def test_a_time_can_be_an_id_or_dense_when_told():
    at = pa.array([dt.datetime(1970, 1, 2), dt.datetime(1970, 1, 1)], pa.timestamp("s"))
    batch = one_batch({"a": at, "b": at}, {"a": {"kind": "id"}, "b": {"kind": "dense"}})
    assert batch.ids.values.tolist() == [86400, 0]
    assert batch.dense.tolist() == [[86400.0], [0.0]]


@pytest.mark.parametrize("where", ["memory", "ipc", "parquet"])
def test_lists_of_lists_and_strings_travel_whole(where, tmp_path):
    kind = pa.list_(pa.large_list(pa.string()))
    rows = [[["a", "b"], []], [], [["Zürich"]]]
    assert [row["x"] for row in rows_of(stored(kind, rows, tmp_path, where))] == rows


@pytest.mark.parametrize("where", ["memory", "ipc", "parquet"])
def test_struct_leaves_go_by_dotted_names(where, tmp_path):
    kind = pa.struct({"age": pa.int8(), "home": pa.struct({"city": pa.string(), "tags": LIST})})
    rows = [{"age": 30, "home": {"city": "Bern", "tags": [1, 2]}}, {"age": 40, "home": None}, None]
    ds = stored(kind, rows, tmp_path, where)
    assert [feature.name for feature in ds.schema] == ["x.age", "x.home.city", "x.home.tags"]
    got = [tuple(row.values()) for row in rows_of(ds)]
    assert got == [([30], [hashed("Bern")], [1, 2]), ([40], [NULL_ID], []), ([NULL_ID], [NULL_ID], [])]


def test_a_column_of_nulls_alone_is_left_out_until_it_is_given_a_kind():
    columns = {"x": pa.nulls(2), "user": [1, 2]}
    assert one_batch(columns).ids.names == ("user",)
    assert one_batch(columns, {"x": {"kind": "id"}}).ids["x"].to_list() == [[NULL_ID]] * 2
    assert one_batch(columns, {"x": {"kind": "dense"}}).dense.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("shuffled", [False, True])
def test_dictionaries_that_grow_change_or_are_given_up_midway_give_the_same_ids(tmp_path, shuffled):
    rows = 60_000
    few, many = (
        [f"w{i % 5}" for i in range(rows)],
        [f"a rather long word, number {i % 50_000}" for i in range(rows)],
    )
    some = [None if i % 11 == 0 else ["x", f"w{i // 1000}"] for i in range(rows)]
    table = pa.table({"row": range(rows), "few": few, "many": many, "some": some})
    pq.write_table(table.slice(0, 40_000), tmp_path / "a.parquet", row_group_size=40_000)
    pq.write_table(table.slice(40_000), tmp_path / "b.parquet", row_group_size=7000, use_dictionary=False)
    ds = hr.data.parquet(tmp_path, batch_size=9999, threads=2)
    ds = ds.shuffle(seed=1, rows=20_000) if shuffled else ds
    for batch in ds:
        order = batch.ids["row"].values.tolist()
        assert batch.ids["few"].values.tolist() == [as_id(few[i]) for i in order]
        assert batch.ids["many"].values.tolist() == [as_id(many[i]) for i in order]
        assert batch.ids["some"].to_list() == [[as_id(word) for word in some[i] or []] for i in order]


def test_files_may_encode_one_column_differently(tmp_path):
    kinds = [pa.string(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())]
    for i, kind in enumerate(kinds):
        table = pa.table(
            {
                "word": pa.array(["a", None], kind),
                "note": pa.array([f"n{i}", None], kind),
                "tags": pa.array([["a"], None]),
            }
        )
        lists = pa.list_(kind) if i else pa.large_list(kind)
        pq.write_table(table.set_column(2, "tags", table["tags"].cast(lists)), tmp_path / f"{i}.parquet")
    ds = hr.data.parquet(tmp_path, batch_size=4)
    schema = ds.schema.edit("note", kind="extra")
    for shuffled in (False, True):
        made = ds.with_schema(schema).shuffle(seed=0, rows="all") if shuffled else ds.with_schema(schema)
        rows = sorted((str(row["word"]), row["note"], str(row["tags"])) for row in rows_of(made))
        word = str([as_id("a")])
        assert rows == sorted([(str([NULL_ID]), "", "[]")] * 3 + [(word, f"n{i}", word) for i in range(3)])


def test_batches_keep_their_memory_when_later_ones_are_made():
    ds = hr.data.table({"user": list(range(1000)), "tags": [[i, i] for i in range(1000)]}, batch_size=10, threads=2)
    kept = list(ds)
    copies = [batch.clone() for batch in ds]
    assert equal_batches(kept, copies)


# -- nulls ---------------------------------------------------------------------------------------------------

TAGS = pa.array([[1, None, 2], None, []], LIST)
PAIRS = pa.array([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2))


@pytest.mark.parametrize(
    ("changes", "scalars", "lists", "pairs"),
    [
        (
            {"null": "id"},
            [[5], [NULL_ID]],
            [[1, NULL_ID, 2], [NULL_ID], []],
            [[1, NULL_ID], [NULL_ID] * 2, [3, 4]],
        ),
        ({"null": "empty"}, [[5], []], [[1, 2], [], []], [[1], [], [3, 4]]),
        ({"default": 9}, [[5], [9]], [[1, 9, 2], [9], []], [[1, 9], [9, 9], [3, 4]]),
    ],
    ids=["id", "empty", "default"],
)
def test_ids_follow_their_null_policy_at_every_level(changes, scalars, lists, pairs):
    for column, expected in ((pa.array([5, None]), scalars), (TAGS, lists), (PAIRS, pairs)):
        for part in (column, pa.concat_arrays([column, column]).slice(len(column))):
            assert one_batch({"x": part}, {"x": changes}).ids["x"].to_list() == expected


@pytest.mark.parametrize("text", [pa.string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_null_words_follow_their_policy_too(text):
    column = pa.array(["a", None], text)
    assert one_batch({"x": column}).ids["x"].to_list() == [[hashed("a")], [NULL_ID]]
    assert one_batch({"x": column}, {"x": {"null": "empty"}}).ids["x"].to_list() == [[hashed("a")], []]
    assert one_batch({"x": column}, {"x": {"default": "b"}}).ids["x"].to_list() == [
        [hashed("a")],
        [hashed("b")],
    ]


def test_a_null_inside_a_dictionary_is_a_null():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert one_batch({"x": column}).ids["x"].to_list() == [[hashed("a")], [NULL_ID], [NULL_ID]]


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        (pa.array([1, None]), "id", "column 'x', <table>.*, row 1: a null, .*null=\"error\""),
        (TAGS.slice(1), "id", "row 0: a null, "),
        (TAGS.slice(0, 1), "id", "row 0: a null inside a list"),
        (pa.array([1.0, None]), "dense", "row 1: a null"),
        (pa.array([1, None]), "label", "row 1: a null"),
        (pa.array([1.0, None]), "weight", "row 1: a null"),
        (pa.array([[1.0, None]], pa.list_(pa.float32(), 2)), "dense", "row 0: a null inside a list"),
        (pa.array([1, None]), "extra", "a null int64"),
    ],
)
def test_error_names_the_column_the_place_and_the_remedy(column, kind, message):
    with pytest.raises(ValueError, match=message) as raised:
        one_batch({"x": column}, {"x": {"kind": kind, "null": "error"}})
    assert "default=" in str(raised.value)


def test_labels_refuse_nulls_unless_told_otherwise():
    with pytest.raises(ValueError, match=r"column 'y'.*a null"):
        one_batch({"y": [1, None]}, label="y")
    assert one_batch({"y": [1, None]}, {"y": {"default": 0}}, label="y").label.tolist() == [1.0, 0.0]


def test_dense_nulls_become_zero_or_the_default_at_every_level():
    pairs = pa.array([[1.0, None], None], pa.list_(pa.float32(), 2))
    columns = {"a": [1.5, None], "v": pairs}
    assert one_batch(columns).dense.tolist() == [[1.5, 1.0, 0.0], [0.0, 0.0, 0.0]]
    edits = {"a": {"default": 7}, "v": {"default": [8, 9]}}
    assert one_batch(columns, edits).dense.tolist() == [[1.5, 1.0, 9.0], [7.0, 8.0, 9.0]]


def test_a_default_for_whole_lists_leaves_null_elements_an_error():
    assert one_batch({"x": TAGS.slice(1)}, {"x": {"default": [7, 8]}}).ids["x"].to_list() == [[7, 8], []]
    with pytest.raises(ValueError, match="a null inside a list"):
        one_batch({"x": TAGS}, {"x": {"default": [7, 8]}})


def test_a_default_passes_through_the_transforms():
    changes = {"default": [13, 25, 36], "transforms": [Modulo(10), Truncate(2)]}
    assert one_batch({"x": pa.array([None, [11]], LIST)}, {"x": changes}).ids["x"].to_list() == [[3, 5], [1]]
    scaled = {"default": 3.0, "transforms": [Standardize(1.0, 2.0)]}
    assert one_batch({"x": [None, 5.0]}, {"x": scaled}).dense.tolist() == [[1.0], [2.0]]
    with pytest.raises(ValueError, match="feature 'x': its transforms make a null of default='c'"):
        one_batch({"x": ["a"]}, {"x": {"default": "c", "transforms": [Vocabulary(["a"], oov="null")]}})


def test_values_under_nulls_never_show():
    hidden = pa.ListArray.from_arrays([0, 2, 4], [1, 2, 3, 4], mask=pa.array([True, False]))
    scalars = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([666, 5]))])
    assert one_batch({"x": hidden, "y": scalars}, {"y": {"null": "empty"}}).ids["x"].to_list() == [[], [3, 4]]
    assert one_batch({"y": scalars}, {"y": {"null": "empty"}}).ids["y"].to_list() == [[], [5]]
    assert one_batch({"y": scalars}, {"y": {"kind": "dense"}}).dense.tolist() == [[0.0], [5.0]]


def test_extra_numbers_take_their_default():
    at = pa.array([dt.datetime(1970, 1, 1, 0, 0, 5), None], pa.timestamp("s"))
    changes = {"at": {"default": dt.datetime(1970, 1, 1, 0, 0, 9)}}
    assert one_batch({"at": at}, changes).extra["at"].tolist() == [5, 9]


# -- weights of ids ------------------------------------------------------------------------------------------


def weighed(ids, weights, **changes):
    columns = {"x": ids, "w": weights, "plain": [7] * len(ids)}
    return one_batch(columns, {"x": {"weights": "w", **changes}})


def test_weights_lie_beside_their_ids():
    batch = weighed(pa.array([[1, 2], [], [3]], LIST), pa.array([[0.5, 1.5], [], [2.5]]))
    assert batch.ids.weights_of("x").tolist() == [0.5, 1.5, 2.5]
    assert batch.ids.weights_of("plain").tolist() == [1.0, 1.0, 1.0]
    assert "w" not in batch.extra


def test_weights_of_single_ids_are_single_numbers():
    batch = weighed(pa.array([1, None, 3]), pa.array([0.5, 9.0, 2.5]), null="empty")
    assert (batch.ids["x"].values.tolist(), batch.ids.weights_of("x").tolist()) == ([1, 3], [0.5, 2.5])


@pytest.mark.parametrize(
    ("changes", "ids", "weights"),
    [
        ({"null": "empty"}, [1, 2], [0.5, 2.5]),
        ({"null": "id"}, [1, NULL_ID, 2, NULL_ID], [0.5, 1.5, 2.5, 1.0]),
        ({"default": 9}, [1, 9, 2, 9], [0.5, 1.5, 2.5, 1.0]),
    ],
    ids=["empty", "id", "default"],
)
def test_weights_follow_the_null_policy_of_their_ids(changes, ids, weights):
    batch = weighed(TAGS, pa.array([[0.5, 1.5, 2.5], None, []], pa.list_(pa.float64())), **changes)
    assert (batch.ids["x"].values.tolist(), batch.ids.weights_of("x").tolist()) == (ids, weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0]], "1 weights for 2 ids"),
        ([None], "0 weights for 2 ids"),
        ([[1.0, None]], "column 'w'.*a null inside a list"),
    ],
)
def test_weights_that_do_not_fit_are_errors(weights, message):
    with pytest.raises(ValueError, match=message):
        weighed(pa.array([[1, 2]], LIST), pa.array(weights, pa.list_(pa.float32())))


# -- shapes --------------------------------------------------------------------------------------------------


def test_a_promised_length_is_kept_or_the_row_is_named():
    batch = one_batch({"x": pa.array([[1, 2], [3, 4]], LIST)}, {"x": {"size": 2}})
    assert batch.ids.hotness == (2,)
    dense = one_batch({"x": pa.array([[1.0, 2.0]])}, {"x": {"kind": "dense", "size": 2}})
    assert (dense.dense.tolist(), dense.dense_names) == ([[1.0, 2.0]], ("x[0]", "x[1]"))
    for kind in ("id", "dense"):
        with pytest.raises(ValueError, match="row 1: a list of 1 values, but size=2 was promised"):
            one_batch({"x": pa.array([[1, 2], [3]], LIST)}, {"x": {"kind": kind, "size": 2}})


def test_several_labels_make_a_matrix_in_their_order():
    columns = {"like": [0, 1], "user": [1, 2], "click": [True, False], "w": [0.5, 2.0]}
    batch = one_batch(columns, label=["click", "like"], weight="w")
    assert (batch.label.tolist(), batch.label_names) == ([[1.0, 0.0], [0.0, 1.0]], ("click", "like"))
    assert batch.weight.tolist() == [0.5, 2.0]
    assert one_batch(columns, label="click").label.tolist() == [1.0, 0.0]


def test_one_label_column_of_fixed_length_makes_a_matrix():
    kind = pa.list_(pa.float32(), 2)
    assert one_batch({"y": pa.array([[1, 0], [0, 1]], kind)}, label="y").label.tolist() == [[1, 0], [0, 1]]


# -- transforms and crosses ----------------------------------------------------------------------------------


def test_transforms_apply_in_order():
    edits = {
        "price": {"transforms": [Clip(0, None), Log1p()]},
        "age": {"kind": "id", "transforms": [Bucketize([18, 30])]},
        "tags": {"transforms": [Truncate(2, keep="last"), Hash(), Modulo(100)]},
        "city": {"transforms": [Vocabulary(["Bern", "Basel"])]},
        "y": {"kind": "label", "transforms": [IsIn(["yes"])]},
    }
    columns = {
        "price": [-5.0, 1.0],
        "age": [17.5, 40.0],
        "tags": pa.array([[1, 2, 3], None], LIST),
        "city": ["Basel", "Genf"],
        "y": ["yes", "no"],
    }
    batch = one_batch(columns, edits)
    assert batch.dense.tolist() == [[0.0], [float(np.float32(np.log(2)))]]
    assert batch.ids["age"].to_list() == [[0], [2]]
    two = [as_id(xxhash.xxh64_intdigest(value.to_bytes(8, "little"), seed=0)) % 100 for value in (2, 3)]
    assert batch.ids["tags"].to_list() == [two, []]
    assert batch.ids["city"].to_list() == [[2], [0]]
    assert batch.label.tolist() == [1.0, 0.0]


def test_a_transform_that_fails_names_the_place():
    with pytest.raises(ValueError, match=r"-2.0 is not above -1") as raised:
        one_batch({"x": [-2.0]}, {"x": {"transforms": [Log1p()]}})
    assert "while reading <table>" in "".join(raised.value.__notes__)


def crossed(columns, left, right, **options):
    ds = hr.data.table(pa.table(columns), batch_size=1000)
    (batch,) = ds.with_schema(ds.schema.cross(left, right, **options))
    return batch.ids


def test_crosses_pair_transformed_columns():
    columns = {"a": pa.array([1, None]), "tags": pa.array([["x", "y"], ["z"]])}
    ids = crossed(columns, "a", "tags", name="pair")
    direct = hr.data.Cross("a", "tags")(pa.array([1]), pa.array([["x", "y"]]))
    assert ids["pair"].to_list()[0] == direct.to_pylist()[0]
    assert len(set(ids["pair"].to_list()[0])) == 2
    assert ids.names == ("a", "tags", "pair")


def test_a_cross_of_single_values_stays_single_and_fits_its_buckets():
    ids = crossed({"a": list(range(200)), "b": ["x", "y"] * 100}, "a", "b", buckets=10)
    assert ids.hotness == (1, 1, 1)
    values = ids["a_x_b"].values.tolist()
    assert set(values) == set(range(10))


def test_a_cross_survives_without_its_sides():
    ds = hr.data.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]}, batch_size=2)
    ds = ds.with_schema(ds.schema.cross("a", "b"))
    (whole,), (alone,) = list(ds), list(ds.select(["a_x_b"]))
    assert alone.ids.names == ("a_x_b",)
    assert alone.ids["a_x_b"].to_list() == whole.ids["a_x_b"].to_list()


def test_shuffled_extra_columns_follow_their_rows():
    n = 500
    columns = {"row": list(range(n)), "word": [f"w{i}" for i in range(n)], "deep": [[[i]] for i in range(n)]}
    ds = hr.data.table(pa.table(columns), batch_size=7)
    ds = ds.with_schema(ds.schema.edit("word", kind="extra")).shuffle(seed=1, rows=100)
    rows = rows_of(ds)
    assert [row["row"] for row in rows] != [[i] for i in range(n)]
    assert all(same(row["deep"], [row["row"]]) and row["word"] == f"w{row['row'][0]}" for row in rows)
