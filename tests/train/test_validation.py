"""Validation data that cannot be used is refused before the first step."""

from __future__ import annotations

import pyarrow as pa
import pytest

import hybridrec as hr
from hybridrec.data import Modulo, Standardize
from tests.train.clicks import clicks, dataset, trainer_of


def other(rows: int = 300, **changes):
    """Validation data with some columns changed or (None) left out, read by the schema of training."""
    columns = {name: column for name, column in {**clicks(rows), **changes}.items() if column is not None}
    return hr.data.table(columns, batch_size=20, schema=dataset(10).schema)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": None}, "validation data: no column named 'age'"),
        ({"click": None}, "validation data: no column named 'click'"),
        (
            {"click": clicks(300)["click"] * 7},
            "validation data: label 'click' is 7 in row [0-9]+, but loss 'bce' takes",
        ),
    ],
)
def test_what_is_wrong_with_validation_data_is_told_before_the_first_step(tmp_path, changes, message):
    ds = dataset(500)
    trainer = trainer_of(ds, out=tmp_path / "a")
    with pytest.raises(ValueError, match=message):
        trainer.fit(ds, other(**changes))
    assert trainer.step == 0
    assert not (tmp_path / "a").exists()


def as_text(schema):
    """The same rows with users as text, and a schema that is inferred from them."""
    return hr.data.table({**clicks(300), "user": clicks(300)["user"].astype(str)}, batch_size=20, label="click")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (as_text, "validation data: feature 'user': values text, but numbers in training; open both with one schema"),
        (lambda schema: schema.edit("user", transforms=[Modulo(7)]), r"'user': transforms .*Modulo.*, but none in"),
        (lambda schema: schema.edit("age", transforms=[Standardize(1, 2)]), r"'age': transforms .*Standardize"),
        (lambda schema: schema.edit("age", kind="extra"), "feature 'age': kind extra, but dense in training"),
        (lambda schema: schema.select(["user", "tags", "age"]), "the data has no column 'item', which the model"),
    ],
    ids=["text", "ids", "numbers", "kind", "lacking"],
)
def test_features_that_are_not_those_of_training_are_told_before_the_first_step(made, message):
    ds = dataset(500)
    trainer, given = trainer_of(ds), made(ds.schema)
    valid = given if isinstance(given, hr.data.Dataset) else dataset(300).with_schema(given)
    with pytest.raises(ValueError, match=message):
        trainer.fit(ds, valid)
    assert trainer.step == 0


@pytest.mark.parametrize("empty", [dataset(100).where([("user", "<", 0)]), [], dataset(99, drop_last=True)])
def test_empty_validation_data_is_told_before_the_first_step(empty):
    ds = dataset(500)
    trainer = trainer_of(ds)
    with pytest.raises(ValueError, match="validation data: there are no rows to evaluate on"):
        trainer.fit(ds, empty)
    assert trainer.step == 0


def test_a_short_last_batch_that_is_left_out_leaves_the_others_to_validate_on():
    ds = dataset(500)
    trainer, valid = trainer_of(ds), dataset(250, drop_last=True)
    found = trainer.fit(ds, valid).valid[-1]
    assert found["loss"] == pytest.approx(trainer.evaluate(valid)["loss"])


def test_batches_that_come_once_are_not_looked_at_before():
    ds = dataset(500)
    trainer = trainer_of(ds)
    trainer.fit(ds, iter(list(dataset(300))))
    assert len(trainer.history.valid) == 1


def test_a_stream_that_comes_once_is_validated_on_from_its_first_row():
    table, ds = pa.table(clicks(300)), dataset(500)
    stream = hr.data.stream(iter(table.to_batches(max_chunksize=50)), label="click", batch_size=20)
    trainer = trainer_of(ds)
    found = trainer.fit(ds, stream).valid[-1]
    assert found["loss"] == pytest.approx(trainer.evaluate(other())["loss"])
