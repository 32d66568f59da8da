"""The loader: frames of every kind, columns that are missing, files that were damaged."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import hybridrec as hr
from hybridrec.models import DeepFM
from hybridrec.serve import Predictor, export, load
from tests.serve.trained import dataset, fit, frame, scores


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    ds = dataset(price={"default": 1.5}, tags={"default": 3, "weights": None})
    model = DeepFM(ds.schema, dim=4)
    fit(model, ds)
    return export(model, tmp_path_factory.mktemp("served")), model, ds


@pytest.fixture(scope="module")
def predictor(served) -> Predictor:
    return load(served[0])


def test_frames_of_pandas_polars_and_arrow_give_the_same_scores(served, predictor):
    data = pa.table(frame())
    wanted = scores(served[1], served[2])
    for made in (data, data.to_pandas(), pl.from_arrow(data), frame()):
        np.testing.assert_allclose(predictor.predict(made), wanted, rtol=0, atol=1e-6)


def test_columns_come_in_any_order_and_others_are_ignored(predictor):
    data = frame()
    turned = {"note": ["x"] * 120, **dict(reversed(data.items()))}
    np.testing.assert_array_equal(predictor.predict(turned), predictor.predict(data))


def test_columns_of_other_types_are_cast(predictor):
    data = pa.table(frame())
    narrow = data.set_column(data.column_names.index("item"), "item", data["item"].cast(pa.int16()))
    np.testing.assert_array_equal(predictor.predict(narrow), predictor.predict(data))
    rows = pd.DataFrame({"user": [1.0, np.nan], "item": [1, 2], "seen": [[], [2]], "age": [30, 40]})
    assert predictor.predict(rows).shape == (2,)


def test_a_value_that_cannot_be_cast_is_named(predictor):
    with pytest.raises(ValueError, match="column 'item' is string, but was int64 in training"):
        predictor.predict(frame() | {"item": ["a"] * 120})


def test_a_missing_column_is_named_with_what_to_do(predictor):
    data = {name: column for name, column in frame().items() if name not in ("item", "age")}
    with pytest.raises(ValueError, match=r"no column 'item', 'age'.*\(item: id, int64\).*it has user, seen.*default="):
        predictor.predict(data)


def test_a_missing_column_with_a_default_is_filled(predictor):
    data = {name: column for name, column in frame().items() if name not in ("price", "tags", "stars", "click")}
    filled = data | {"price": np.full(120, 1.5, np.float32), "tags": [[3]] * 120}
    np.testing.assert_array_equal(predictor.predict(data), predictor.predict(filled))
    assert predictor.columns == ("user", "item", "seen", "tags", "age", "price")


def test_threads_may_share_a_predictor(predictor):
    wanted = predictor.predict(frame())
    found = []
    threads = [threading.Thread(target=lambda: found.append(predictor.predict(frame()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(each, wanted) for each in found)


def test_it_says_what_it_is(predictor):
    assert repr(predictor).startswith("Predictor(DeepFM, labels: click; 8 tables, ")


def copied(folder, target):

    return shutil.copytree(folder, target)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no exported model \(no manifest.json\).*hybridrec export"):
        load(tmp_path)


def test_damaged_files_are_named(served, tmp_path):
    folder = copied(served[0], tmp_path / "copy")
    table = folder / "tables" / "embeddings" / "user.arrow"
    content = table.read_bytes()
    table.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"user.arrow has [\d,]+ bytes in place of"):
        load(folder)
    table.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"user.arrow has other content"):
        load(folder)
    table.unlink()
    with pytest.raises(ValueError, match=r"user.arrow is missing"):
        load(folder)


def test_a_newer_format_and_a_cut_manifest_are_refused(served, tmp_path):
    folder = copied(served[0], tmp_path / "copy")
    path = folder / "manifest.json"
    made = json.loads(path.read_text())
    path.write_text(json.dumps(made | {"format": 99}))
    with pytest.raises(ValueError, match="has format 99; this release reads format 1"):
        load(folder)
    path.write_text(json.dumps(made)[:50])
    with pytest.raises(ValueError, match=r"manifest.json cannot be read"):
        load(folder)


def test_strings_crosses_fixed_lists_and_sample_weights_follow_the_schema(tmp_path):
    draw = np.random.default_rng(0)
    data = {
        "city": [f"city {i}" for i in draw.integers(0, 9, 60)],
        "item": draw.integers(0, 9, 60),
        "box": pa.array(draw.normal(size=(60, 2)).astype(np.float32).tolist(), pa.list_(pa.float32(), 2)),
        "age": draw.normal(40, 10, 60),
        "importance": draw.random(60),
        "click": draw.integers(0, 2, 60),
    }
    ds = hr.data.table(data, label="click", weight="importance", batch_size=20)
    schema = ds.schema.edit("age", kind="id", transforms=[hr.data.Bucketize([30.0, 40.0, 50.0])]).cross("city", "item")
    ds = ds.with_schema(schema)
    model = DeepFM(schema, dim=4)
    fit(model, ds)
    predictor = load(export(model, tmp_path / "served"))
    assert predictor.columns == ("city", "item", "box", "age")
    given = {name: data[name] for name in predictor.columns}
    np.testing.assert_allclose(predictor.predict(given), scores(model, ds), rtol=0, atol=1e-6)


def test_a_run_without_dense_columns_is_served(tmp_path):
    ds = hr.data.table({"user": [1, 2, 3] * 9, "click": [0, 1, 1] * 9}, label="click", batch_size=9)
    model = DeepFM(ds.schema, dim=4)
    fit(model, ds)
    predictor = load(export(model, tmp_path / "served"))
    np.testing.assert_allclose(predictor.predict({"user": [1, 2, 3] * 9}), scores(model, ds), rtol=0, atol=1e-6)


def test_a_nan_in_a_dense_column_is_named_with_its_row(predictor):
    ages = np.full(120, 30.0, np.float32)
    ages[77] = np.nan
    with pytest.raises(ValueError, match="column 'age' is nan in row 77, so its score is not a number"):
        predictor.predict(frame() | {"age": ages}, batch_size=50)
