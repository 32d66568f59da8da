from __future__ import annotations

import json

import pyarrow as pa
import pytest

import hybridrec as hr
from hybridrec.data import Bucketize, Clip, Feature, Hash, IsIn, Schema, Truncate, Vocabulary

LIST = pa.list_(pa.int64())
WORDS = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("kind", "becomes", "null"),
    [
        (pa.int8(), "id", "id"),
        (pa.uint64(), "id", "id"),
        (pa.string(), "id", "id"),
        (pa.large_binary(), "id", "id"),
        (pa.binary(4), "id", "id"),
        (WORDS, "id", "id"),
        (LIST, "id", "empty"),
        (pa.large_list(pa.string()), "id", "empty"),
        (pa.list_(pa.int32(), 3), "id", "id"),
        (pa.float16(), "dense", "default"),
        (pa.bool_(), "dense", "default"),
        (pa.decimal128(9, 2), "dense", "default"),
        (pa.list_(pa.float32(), 4), "dense", "default"),
        (pa.list_(pa.float32()), "extra", "empty"),
        (pa.list_(LIST), "extra", "empty"),
        (pa.timestamp("us", "UTC"), "extra", "error"),
        (pa.date32(), "extra", "error"),
        (pa.null(), "skip", "error"),
        (pa.struct({"a": pa.int8()}), "skip", "error"),
        (pa.month_day_nano_interval(), "skip", "error"),
    ],
    ids=str,
)
def test_each_type_becomes_its_usual_kind_and_null_policy(kind, becomes, null):
    feature = Schema.infer(pa.schema({"x": kind}))["x"]
    assert (feature.kind, feature.null) == (becomes, null)


def test_labels_come_last_in_the_order_they_were_named():
    arrow = pa.schema({"like": pa.int8(), "user": pa.int64(), "click": pa.bool_(), "w": pa.float32()})
    schema = Schema.infer(arrow, label=["click", "like"], weight="w")
    assert [feature.name for feature in schema.of("label")] == ["click", "like"]
    assert [feature.name for feature in schema.of("weight")] == ["w"]
    assert schema["click"].null == "error"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": "clik"}, "no column named 'clik'; the data has user, word"),
        ({"weight": "w"}, "no column named 'w'"),
        ({"label": "user", "weight": "user"}, "column 'user' is named twice as label or weight"),
        ({"label": ["user", "user"]}, "column 'user' is named twice as label or weight"),
        ({"label": "word"}, r"label 'word' holds string, not numbers; state which values are positive.*IsIn"),
    ],
)
def test_a_label_or_weight_that_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Schema.infer(pa.schema({"user": pa.int64(), "word": pa.string()}), **given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "ids"}, "kind 'ids' is not one of id, dense, label"),
        ({"null": "zero"}, "null policy 'zero' is not one of error, default"),
        ({"type": pa.float32()}, "float cannot be an id; bucketize it"),
        ({"type": pa.decimal128(9, 2)}, "cannot be an id"),
        ({"type": pa.string(), "kind": "dense"}, "string cannot be kind='dense'; hash it"),
        ({"type": pa.string(), "kind": "label"}, "IsIn"),
        ({"type": pa.list_(LIST)}, "list of lists and travels as kind='extra'"),
        ({"type": pa.list_(pa.float32()), "kind": "dense"}, "needs a fixed length; .* say how many: size=3"),
        ({"type": LIST, "kind": "label"}, 'needs a fixed length; .*"size": 3 .*data.schema=s.json.; else take another'),
        ({"type": pa.list_(pa.float32(), 2), "kind": "weight"}, "one number per row"),
        ({"kind": "dense", "null": "empty"}, "suits ids; a dense column takes"),
        ({"kind": "extra", "null": "id"}, 'suits ids, not kind .extra.; leave null out, or take "error"'),
        ({"null": "default"}, "needs a default= value"),
        ({"default": "x"}, "default='x' is no value of a int64 column"),
        ({"default": [1, 2]}, r"default=\[1, 2\] is no value"),
        ({"type": pa.list_(pa.int64(), 2), "default": [1]}, "is no value of a fixed_size_list"),
        ({"size": 3}, "size=3 is the length of a list; int64 is none"),
        ({"kind": "dense", "weights": "w"}, "weights= names the weights of ids"),
    ],
    ids=str,
)
def test_a_feature_that_contradicts_itself_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=f"feature 'x': .*{message}"):
        Feature(**({"name": "x", "kind": "id", "type": pa.int64()} | changes))


def test_a_column_that_a_schema_file_had_as_ids_is_skipped_by_a_change_of_its_kind_alone():
    listed = Feature("x", "id", pa.int64()).to_json()
    assert listed["null"] == "id"
    assert Feature.from_json({**listed, "kind": "skip"}).kind == "skip"


def test_transforms_are_checked_against_the_type_and_named_with_the_feature():
    with pytest.raises(TypeError, match=r"feature 'x': .*takes lists, not a column of type int64"):
        Feature("x", "id", pa.int64(), transforms=(Truncate(2),))
    with pytest.raises(TypeError, match=r"feature 'x': .* is no transform"):
        Feature("x", "id", pa.int64(), transforms=(abs,))  # pyright: ignore[reportArgumentType]


def test_transforms_decide_what_a_column_may_be():
    assert Feature("age", "id", pa.float32(), transforms=(Bucketize([1.0]),)).output == pa.int64()
    assert Feature("y", "label", pa.string(), transforms=(IsIn(["yes"]),)).output == pa.float32()
    with pytest.raises(ValueError, match="cannot be an id"):
        Feature("age", "id", pa.int64(), transforms=(IsIn([1]),))


def test_an_edit_leaves_the_schema_it_came_from_alone():
    schema = Schema.infer(pa.schema({"user": pa.int64(), "age": pa.float32()}))
    edited = schema.edit("age", kind="id", transforms=[Bucketize([1.0])])
    assert (schema["age"].kind, edited["age"].kind, edited["age"].null) == ("dense", "id", "id")
    assert [feature.name for feature in edited] == ["user", "age"]


def test_an_edit_keeps_a_null_policy_that_was_stated():
    schema = Schema.infer(pa.schema({"tags": LIST})).edit("tags", null="error")
    assert schema.edit("tags", transforms=[Hash()])["tags"].null == "error"
    assert schema.edit("tags", default=3)["tags"].null == "error"
    assert Schema.infer(pa.schema({"tags": LIST})).edit("tags", default=3)["tags"].null == "default"


def test_a_promised_size_makes_a_list_fixed():
    feature = Schema.infer(pa.schema({"tags": LIST})).edit("tags", size=3)["tags"]
    assert (feature.ragged, feature.width, feature.null) == (False, 3, "id")


def test_truncating_a_fixed_size_list_changes_its_width():
    schema = Schema.infer(pa.schema({"tags": pa.list_(pa.int64(), 4)}))
    assert schema.edit("tags", transforms=[Truncate(2)])["tags"].width == 2


def test_edits_of_what_is_not_there_are_refused():
    schema = Schema.infer(pa.schema({"user": pa.int64()}))
    with pytest.raises(ValueError, match="no column named 'usr'; the schema has user"):
        schema.edit("usr", kind="skip")
    with pytest.raises(ValueError, match=r"a feature has no \['nul'\]; it has"):
        schema.edit("user", nul="error")


def test_select_keeps_the_order_asked_for_and_what_the_chosen_stand_on():
    arrow = pa.schema({"a": LIST, "w": pa.list_(pa.float32()), "b": pa.int64(), "c": pa.int64(), "y": pa.int8()})
    schema = Schema.infer(arrow, label="y").edit("a", weights="w").cross("b", "c")
    chosen = schema.select(["b_x_c", "a"])
    assert [(f.name, f.kind) for f in chosen if f.kind != "skip"] == [
        ("b_x_c", "id"),
        ("a", "id"),
        ("y", "label"),
    ]
    assert {f.name for f in chosen.of("skip")} == {"w", "b", "c"}
    with pytest.raises(ValueError, match="no column named 'z'"):
        schema.select(["z"])
    with pytest.raises(TypeError, match=r"for one column write \['a'\]"):
        schema.select("a")


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([("a", {}), ("a", {})], r"twice: \['a'\]"),
        ([("a", {"weights": "w"})], "feature 'a': weights='w' is not a column"),
        ([("a", {"cross": hr.data.Cross("b", "c")})], "feature 'a': cross='b' is not a column"),
    ],
)
def test_features_that_do_not_fit_together_are_refused(features, message):
    with pytest.raises(ValueError, match=message):
        Schema(Feature(name, "id", pa.int64(), **more) for name, more in features)


def test_two_sample_weights_are_refused():
    with pytest.raises(ValueError, match="one sample weight; the schema has a, b"):
        Schema(Feature(name, "weight", pa.float32()) for name in "ab")


def full_schema() -> Schema:
    arrow = pa.schema(
        {
            "user": pa.int64(),
            "tags": pa.large_list(pa.string()),
            "w": pa.list_(pa.float32()),
            "price": pa.decimal128(9, 2),
            "at": pa.timestamp("ms", "UTC"),
            "code": pa.binary(3),
            "vector": pa.list_(pa.float16(), 4),
            "click": pa.bool_(),
        }
    )
    schema = Schema.infer(arrow, label="click").edit("tags", weights="w", transforms=[Vocabulary(["a", "b"])])
    schema = schema.edit("vector", default=[1.0, 2.0, 3.0, 4.0], transforms=[Clip(0, 9)])
    return schema.edit("user", null="empty").cross("user", "tags", buckets=7)


def test_a_schema_round_trips_through_a_file(tmp_path):
    schema = full_schema()
    schema.save(tmp_path / "schema.json")
    loaded = Schema.load(tmp_path / "schema.json")
    assert loaded == schema
    assert hash(loaded) == hash(schema)
    assert [path.name for path in tmp_path.iterdir()] == ["schema.json"]


def test_json_of_another_version_or_with_unknown_keys_is_refused():
    made = json.loads(full_schema().to_json())
    with pytest.raises(ValueError, match="schema version 9; this release reads version 1"):
        Schema.from_json(json.dumps(made | {"version": 9}))
    made["features"][0]["colour"] = "red"
    with pytest.raises(ValueError, match=r"feature 'user': unknown keys \['colour'\]"):
        Schema.from_json(json.dumps(made))


def test_a_schema_prints_one_line_for_each_column():
    lines = repr(full_schema()).splitlines()
    assert lines[0] == "Schema of 9 columns"
    assert len(lines) == 10
    assert "null: default ([1.0, 2.0, 3.0, 4.0])" in "\n".join(lines)


def test_a_schema_of_other_types_than_the_data_is_refused():
    schema = Schema.infer(pa.schema({"user": pa.int64()}))
    schema.check_against(pa.schema({"user": pa.int64(), "more": pa.int8()}))
    with pytest.raises(ValueError, match="column 'user' is string in the data, but int64 in the schema"):
        schema.check_against(pa.schema({"user": pa.string()}))
    words = Schema.infer(pa.schema({"word": pa.string()}))
    words.check_against(pa.schema({"word": pa.dictionary(pa.int8(), pa.large_string())}))
