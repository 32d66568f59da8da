from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data import join as join_module
from hybridrec.data.join import Join, KeyIndex

USERS = pa.table(
    {
        "user": [30, 10, -20],
        "age": pa.array([3, None, 2], pa.int8()),
        "name": ["c", "a", "b"],
        "history": [[1, 2], [], None],
    }
)

TEXT = st.text("ab\0ž", max_size=3)
KEYS = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 2),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
}


@given(st.data())
def test_a_key_is_found_where_it_stands_or_not_at_all(data):
    text = data.draw(st.booleans())
    kinds = st.sampled_from([k for k in KEYS if ("string" in str(k)) == text])
    table_kind, data_kind = data.draw(kinds), data.draw(kinds)
    keys = data.draw(st.lists(KEYS[table_kind], unique=True, max_size=8))
    known = [k for k in keys if isinstance(k, str) or (-128 <= k <= 127 and (k >= 0 or data_kind != pa.uint64()))]
    values = data.draw(st.lists(st.none() | KEYS[data_kind] | st.sampled_from([*known, None]), max_size=12))
    array = pa.array(values, data_kind)
    if data.draw(st.booleans()):
        array = array.dictionary_encode()
    start = data.draw(st.integers(0, len(values)))
    expected = [keys.index(v) if v in keys else -1 for v in values[start:]]
    assert KeyIndex(pa.array(keys, table_kind)).find(array.slice(start)).tolist() == expected


def test_strings_whose_hashes_collide_are_told_apart(monkeypatch):
    real = join_module.hash_array

    def poor_hash(array, seed=0):
        hashes = real(array, seed).to_numpy(zero_copy_only=False)
        return pa.array(hashes.astype(np.int64) & (3 if seed == 0 else 0xFF), mask=array.is_null().to_numpy(False))

    monkeypatch.setattr(join_module, "hash_array", poor_hash)
    keys = ["a", "b", "c", "d", "e", "f"]
    index = KeyIndex(pa.array(keys))
    assert index.find(pa.array(keys[::-1])).tolist() == [5, 4, 3, 2, 1, 0]
    strangers = [f"stranger {i}" for i in range(500)]  # some meet a key's 8-bit hash
    assert set(index.find(pa.array(strangers)).tolist()) == {-1}


def test_a_joined_row_has_the_columns_of_its_key_and_others_are_null():
    batch = pa.record_batch({"click": [1, 0, 1, 0], "user": [10, 99, None, 30]})
    assert Join(USERS, on="user")(batch).to_pydict() == {
        "click": [1, 0, 1, 0],
        "user": [10, 99, None, 30],
        "age": [None, None, None, 3],
        "name": ["a", None, None, "c"],
        "history": [[], None, None, [1, 2]],
    }


def test_the_result_has_the_promised_schema_and_keeps_metadata():
    batch = pa.record_batch({"user": pa.array([10], pa.int16())}).replace_schema_metadata({"k": "v"})
    join = Join(USERS, on="user", prefix="u_")
    result = join(batch)
    result.validate(full=True)
    assert result.schema.equals(join.output(batch.schema), check_metadata=True)
    assert result.schema.metadata == {b"k": b"v"}
    assert result.schema.names == ["user", *join.columns] == ["user", "u_age", "u_name", "u_history"]


def test_string_keys_match_dictionary_columns_and_slices():
    table = pa.table({"item": ["x", "y"], "price": [1.0, 2.0]})
    items = pa.array(["q", "y", "x", None, "y"]).dictionary_encode()
    batch = pa.record_batch({"item": items}).slice(1)
    assert Join(table, on="item")(batch)["price"].to_pylist() == [2.0, 1.0, None, 2.0]


def test_a_table_in_chunks_with_other_dictionaries_joins_as_one():
    colours = [pa.array(["red"]).dictionary_encode(), pa.array(["blue", "red"]).dictionary_encode()]
    table = pa.table({"id": pa.chunked_array([[1], [2, 3]]), "colour": pa.chunked_array(colours)})
    result = Join(table, on="id")(pa.record_batch({"id": [3, 2, 1]}))
    assert result["colour"].to_pylist() == ["red", "blue", "red"]


def test_text_that_a_frame_exports_as_views_is_joined():
    frame = pl.DataFrame({"key": ["a", "b"], "word": ["x", "y"], "tags": [["p"], ["q", "r"]]})
    assert pa.table(frame).schema.field("word").type == pa.string_view()
    join = Join(frame, on="key")
    for kind in (pa.string(), pa.string_view()):
        batch = pa.record_batch({"key": pa.array(["b", "z", None], kind)})
        result = join(batch)
        assert result.schema == join.output(batch.schema)
        assert result["word"].to_pylist() == ["y", None, None]
        assert result["tags"].to_pylist() == [["q", "r"], None, None]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.RecordBatch.from_pydict])
def test_frames_that_export_arrow_can_be_joined(frame):
    join = Join(frame({"item": ["x", "y"], "price": [1, 2]}), on="item")
    assert join(pa.record_batch({"item": ["y", "z"]}))["price"].to_pylist() == [2, None]


def test_an_empty_table_and_an_empty_batch_join():
    batch = pa.record_batch({"user": [1, 2]})
    assert Join(USERS.slice(0, 0), on="user")(batch)["name"].to_pylist() == [None, None]
    assert Join(USERS.schema.empty_table(), on="user")(batch)["age"].to_pylist() == [None, None]
    assert Join(USERS, on="user")(batch.slice(0, 0)).num_rows == 0
    all_null = pa.record_batch({"user": pa.nulls(2)})
    assert Join(USERS, on="user")(all_null)["age"].to_pylist() == [None, None]


def test_a_join_survives_pickling():
    join = pickle.loads(pickle.dumps(Join(USERS, on="user")))
    assert join(pa.record_batch({"user": [-20]}))["name"].to_pylist() == ["b"]


def test_a_join_shows_its_size_and_columns():
    assert repr(Join(USERS, "user", prefix="u_")) == (
        "Join(3 rows of 'u_age', 'u_name', 'u_history', on='user', prefix='u_')"
    )


@pytest.mark.parametrize(("keys", "message"), [([5, 6, 5], "key 5 occurs 2 times"), (["a", "a"], "key 'a' occurs 2")])
def test_duplicate_keys_in_the_table_are_refused(keys, message):
    with pytest.raises(ValueError, match=f"key column 'id' of the joined table: {message}.*rows 0"):
        Join(pa.table({"id": keys}), on="id")


def test_null_keys_in_the_table_are_refused():
    with pytest.raises(ValueError, match="1 of 2 keys are null; drop those rows"):
        Join(pa.table({"id": [1, None]}), on="id")


def test_a_missing_key_column_is_named_with_those_that_are_there():
    with pytest.raises(ValueError, match=r"table has no key column 'id'; it has 'user', 'age'"):
        Join(USERS, on="id")
    with pytest.raises(ValueError, match=r"data has no key column 'user'; it has 'item'"):
        Join(USERS, on="user")(pa.record_batch({"item": [1]}))


@pytest.mark.parametrize("key", [["a"], [1.5], [[1]]], ids=str)
def test_keys_of_another_kind_are_refused_with_both_types(key):
    with pytest.raises(TypeError, match=r"key 'user' is .* in the data and int64 in the table"):
        Join(USERS, on="user")(pa.record_batch({"user": key}))


def test_keys_that_are_floats_are_refused():
    with pytest.raises(TypeError, match="keys of type double cannot be looked up"):
        Join(pa.table({"id": [0.5]}), on="id")


def test_a_name_taken_by_the_data_is_refused():
    with pytest.raises(ValueError, match=r"already has 'age'; pass prefix="):
        Join(USERS, on="user")(pa.record_batch({"user": [1], "age": [2]}))


def test_a_thing_that_is_no_table_is_refused():
    with pytest.raises(TypeError, match="not dict"):
        Join({"user": [1]}, on="user")
