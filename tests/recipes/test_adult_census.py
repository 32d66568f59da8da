"""The census recipe: its features, and what it reaches on the original split."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from recipes import adult_census
from recipes.adult_census import Settings


@pytest.fixture(autouse=True)
def data(shared_data, monkeypatch):
    monkeypatch.setenv("HYBRIDREC_DATA", str(shared_data))


def test_numbers_are_dense_and_ids_and_the_label_is_no_feature():
    schema = adult_census.dataset("train", Settings()).schema
    assert [feature.name for feature in schema.of("dense")] == list(adult_census.NUMBERS)
    assert {f"{name}_id" for name in adult_census.NUMBERS} <= {feature.name for feature in schema.of("id")}
    assert [feature.name for feature in schema.of("label")] == ["income"]
    assert "fnlwgt" not in schema


def test_a_check_never_sees_the_test_rows():
    train, test = adult_census.split(Settings(), check=False)
    kept, held_out = adult_census.split(Settings(), check=True)
    rows = {part: pq.read_metadata(adult_census.folder() / f"{part}.parquet").num_rows for part in ("train", "test")}
    assert (train.num_rows, test.num_rows) == (rows["train"], rows["test"])
    assert kept.num_rows + held_out.num_rows == rows["train"]


def test_one_quick_epoch_beats_logistic_regression():
    settings = replace(Settings(), epochs=1, row_lr=0.05)
    train, test = adult_census.split(settings, check=False)
    assert adult_census.auc(adult_census.train(train, settings), test) >= 0.910


@pytest.mark.slow
def test_the_whole_recipe_reaches_its_figure():
    train, test = adult_census.split(Settings(), check=False)
    assert adult_census.auc(adult_census.train(train, Settings()), test) >= 0.925
