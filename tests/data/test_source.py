"""What all sources share: layouts, union schemas, exact chunks, dictionaries."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.data.source import (
    BadFile,
    check_columns,
    exact_chunks,
    fingerprint,
    layout,
    leaf,
    plain_type,
    record_batch,
    union_schema,
)


def encoded(values: list, dictionary: list) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), pa.array(dictionary))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 11))
def test_chunks_have_exactly_the_asked_size_whatever_comes_in(sizes: list[int], rows: int):
    values = list(range(sum(sizes)))
    batches, start = [], 0
    for size in sizes:
        part = values[start : start + size]
        words = pa.array([f"w{v % 5}" for v in part], pa.string())
        columns = {
            "n": pa.array(part, pa.int64()),
            "s": words.dictionary_encode(),
            "l": [[v] * (v % 3) for v in part],
        }
        columns["l"] = pa.array(columns["l"], pa.list_(pa.int64()))
        batches.append(pa.record_batch(columns))
        start += size
    chunks = list(exact_chunks(batches, rows))
    assert [chunk.num_rows for chunk in chunks[:-1]] == [rows] * (len(chunks) - 1)
    assert not chunks or 0 < chunks[-1].num_rows <= rows
    read = [row for chunk in chunks for row in chunk.to_pylist()]
    assert read == [{"n": v, "s": f"w{v % 5}", "l": [v] * (v % 3)} for v in values]


def test_a_batch_of_the_right_size_passes_untouched():
    batch = pa.record_batch({"a": [1, 2, 3]})
    assert next(exact_chunks([batch, batch], 3)) is batch


def test_chunks_without_columns_keep_their_rows():
    batches = [record_batch([], [], 3), record_batch([], [], 4)]
    assert [chunk.num_rows for chunk in exact_chunks(batches, 5)] == [5, 2]


def test_list_columns_with_differing_dictionaries_are_joined_by_value():
    first = pa.ListArray.from_arrays([0, 2], encoded([0, 1], ["a", "b"]))
    second = pa.ListArray.from_arrays([0, 1], encoded([0], ["c"]))
    (chunk,) = exact_chunks([pa.record_batch({"l": first}), pa.record_batch({"l": second})], 2)
    assert chunk.to_pydict() == {"l": [["a", "b"], ["c"]]}


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_list(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.string())),
        (pa.list_view(pa.int16()), pa.list_(pa.int16())),
        (pa.list_(pa.large_string(), 2), pa.list_(pa.string(), 2)),
        (pa.run_end_encoded(pa.int32(), pa.float32()), pa.float32()),
        (pa.uuid(), pa.binary(16)),
        (pa.list_(pa.list_(pa.uint8())), pa.list_(pa.list_(pa.uint8()))),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
    ],
)
def test_a_plain_type_says_what_a_value_is_and_not_how_it_is_stored(kind: pa.DataType, plain: pa.DataType):
    assert plain_type(kind) == plain


def test_struct_fields_have_dotted_names_and_null_structs_null_leaves():
    inner = pa.array([{"age": 1, "geo": {"city": "a"}}, None, {"age": None, "geo": None}])
    batch = pa.record_batch({"user": inner})
    found = layout(batch.schema)
    assert found.types == {"user.age": pa.int64(), "user.geo.city": pa.string()}
    assert leaf(batch, found.paths["user.age"]).to_pylist() == [1, None, None]
    assert leaf(batch.slice(1), found.paths["user.geo.city"]).to_pylist() == [None, None]


def test_a_struct_inside_a_list_and_a_map_stay_out_with_their_reason():
    schema = pa.schema(
        {
            "a": pa.list_(pa.struct({"x": pa.int8()})),
            "m": pa.map_(pa.string(), pa.int8()),
            "ok": pa.list_(pa.int8()),
        }
    )
    found = layout(schema)
    assert list(found.types) == ["ok"]
    with pytest.raises(ValueError, match="column 'a' cannot be read: a struct inside a list"):
        check_columns(["a"], pa.schema(list(found.types.items())), found.left_out)
    assert "maps are not read" in found.left_out["m"]


def test_a_column_without_a_name_stays_out_with_its_reason():
    found = layout(pa.schema([("", pa.int64()), ("ok", pa.int64()), ("", pa.int64())]))
    assert list(found.types) == ["ok"]
    assert "it has no name" in found.left_out[""]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", None], pa.string_view()),
        pa.array([[1], None], pa.list_view(pa.int64())),
        pa.RunEndEncodedArray.from_arrays([1, 2], pa.array([1.5, None])),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))),
    ],
)
def test_unusual_layouts_are_undone_when_a_leaf_is_taken(array: pa.Array):
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    taken = leaf(batch, ("c",))
    assert taken.type == layout(batch.schema).types["c"]
    assert taken.null_count == 1


def test_duplicate_column_names_are_refused_also_across_structs():
    with pytest.raises(ValueError, match="column 'a' appears twice"):
        layout(pa.schema([("a", pa.int8()), ("a", pa.int16())]))
    with pytest.raises(ValueError, match=r"column 'a\.b' appears twice"):
        layout(pa.schema([("a.b", pa.int8()), ("a", pa.struct({"b": pa.int8()}))]))


def test_a_union_takes_columns_in_order_of_appearance_and_ignores_encodings():
    first = layout(pa.schema({"a": pa.int64(), "s": pa.dictionary(pa.int8(), pa.string()), "n": pa.null()}))
    second = layout(pa.schema({"b": pa.bool_(), "s": pa.large_string(), "n": pa.float32()}))
    schema = union_schema(["one", "two"], [first, second])
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "a": pa.int64(), "s": pa.string(), "n": pa.float32(), "b": pa.bool_()
    }  # fmt: skip


def test_files_that_disagree_name_file_column_and_both_types():
    layouts = [layout(pa.schema({"a": kind})) for kind in (pa.null(), pa.int64(), pa.string())]
    with pytest.raises(ValueError, match="three: column 'a' is string, but two has it as int64"):
        union_schema(["one", "two", "three"], layouts)


def test_an_unknown_column_lists_the_valid_ones():
    with pytest.raises(ValueError, match="unknown column 'c'; the columns are a, b"):
        check_columns(["a", "c"], pa.schema({"a": pa.int8(), "b": pa.int8()}), {})


def test_a_bad_file_survives_pickling_with_its_message():
    error = BadFile("x.parquet", "broken", 2)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.file, copy.reason, copy.row_group) == ("x.parquet", "broken", 2)


def test_a_fingerprint_depends_on_content_and_order():
    assert fingerprint([1, "a"]) == fingerprint([1, "a"])
    assert len({fingerprint(parts) for parts in ([1, "a"], ["a", 1], [1, "b"], [1])}) == 4
