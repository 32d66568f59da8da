from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import hybridrec as hr
from hybridrec.data import NULL_ID, Schema
from hybridrec.data.frame import check_alike, check_inputs, frame_dataset, inputs_of

COLUMNS = pa.schema(
    {"user": pa.int64(), "tags": pa.list_(pa.int64()), "w": pa.list_(pa.float32()), "age": pa.float32()}
    | {"when": pa.date32(), "click": pa.int8(), "importance": pa.float32()}
)
SCHEMA = Schema.infer(COLUMNS, label="click", weight="importance").edit("tags", weights="w")
FRAME = {"user": [7, 8], "tags": [[1, 2], []], "w": [[0.5, 1.5], []], "age": [30, 40]}


def test_inputs_are_ids_and_dense_numbers_and_the_weights_of_ids():
    assert {feature.name: feature.kind for feature in inputs_of(SCHEMA)} == {
        "user": "id",
        "tags": "id",
        "age": "dense",
        "w": "skip",
    }


def test_other_columns_are_inputs_where_they_are_there():
    assert "when" in [feature.name for feature in inputs_of(SCHEMA, ["when", "user"])]


@pytest.mark.parametrize("made", [dict, pa.table, pd.DataFrame, pl.DataFrame], ids=lambda kind: kind.__module__)
def test_any_frame_is_read_in_the_types_of_training(made):
    [batch] = frame_dataset(made(FRAME), SCHEMA)
    assert batch.ids["user"].to_list() == [[7], [8]]
    assert batch.ids["tags"].to_list() == [[1, 2], []]
    assert batch.ids.weights_of("tags").tolist() == [0.5, 1.5]
    assert batch.dense.tolist() == [[30], [40]]
    assert batch.label is None
    assert batch.weight is None


@pytest.mark.parametrize("made", [pa.table, pd.DataFrame, pl.DataFrame], ids=lambda kind: kind.__module__)
def test_fields_of_structs_are_columns_as_in_files(made):
    frame = {"at": [{"user": {"id": 7}, "age": 30}, {"user": None, "age": 40}], "click": [0, 1]}
    schema = hr.data.table(pa.table(frame), label="click", batch_size=2).schema
    [batch] = frame_dataset(made(frame), schema)
    assert batch.ids["at.user.id"].to_list() == [[7], [NULL_ID]]
    assert batch.ids["at.age"].to_list() == [[30], [40]]


def test_a_missing_column_is_named_with_what_there_is():
    with pytest.raises(ValueError, match=r"no column 'age', which the model was trained with \(age: dense, float\)"):
        frame_dataset({name: FRAME[name] for name in ("user", "tags", "w")}, SCHEMA)


def test_a_default_stands_in_for_a_missing_column():
    check_inputs(inputs_of(SCHEMA.edit("age", default=1.0)), ["user", "tags", "w"])


def test_a_column_that_cannot_be_cast_is_named():
    with pytest.raises(ValueError, match="column 'user' is string, but was int64 in training, and cannot be cast"):
        frame_dataset(FRAME | {"user": ["seven", "eight"]}, SCHEMA)


def test_dense_columns_have_the_order_of_training():
    columns = {"x": pa.float32(), "y": pa.float32(), "user": pa.int32()}
    trained, found = Schema.infer(pa.schema(columns)), Schema.infer(pa.schema(columns | {"user": pa.int64()}))
    check_alike(found, trained)
    with pytest.raises(ValueError, match="dense columns y, x, but x, y in training"):
        check_alike(found.select(["y", "x", "user"]), trained)
