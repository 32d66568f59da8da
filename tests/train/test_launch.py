"""What is inferred about a run."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from hybridrec.train.launch import batch_size_for, datasets, launch
from hybridrec.train.run_config import DataConfig, RunConfig
from tests.train.clicks import clicks


@pytest.fixture
def path(tmp_path) -> str:
    pq.write_table(pa.table({**clicks(2000), "like": clicks(2000, seed=1)["click"]}), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def test_model_loss_and_batch_size_are_inferred(path):
    made = launch(RunConfig.of({"data": {"path": path, "label": "click", "valid": 0.25}}))
    assert type(made.trainer.model).__name__ == "DeepFM"
    assert (made.train.num_rows, made.valid.num_rows, made.train.batch_size) == (1500, 500, 64)
    assert made.train.state_dict()["shuffle"] is not None
    assert made.trainer.learner.loss.name == "bce"
    several = launch(RunConfig.of({"data": {"path": path, "label": ["click", "like"]}}))
    assert type(several.trainer.model).__name__ == "MMoE"
    assert several.valid is None


def test_what_is_stated_counts(path):
    values = {
        "data": {"path": path, "label": "click", "valid": path, "columns": ["user", "item"], "batch_size": 10},
        "model": {"name": "twotower", "item": ["item"], "dim": 8},
        "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9},
        "row_optimizer": {"kind": "adam", "lr": 0.25},
        "train": {"epochs": 3, "clip_norm": 2.0},
    }
    made = launch(RunConfig.of(values))
    learner = made.trainer.learner
    assert learner.loss.name == "in_batch_softmax"
    assert learner.dense is not None
    assert (type(learner.dense).__name__, learner.dense.param_groups[0]["momentum"]) == ("SGD", 0.9)
    assert isinstance(learner.rows, hr.optim.Adam)
    assert learner.rows.param_groups[0]["lr"] == 0.25
    assert (learner.clip_norm, made.epochs, made.steps) == (2.0, 3, None)
    assert made.valid is not None
    assert made.valid.num_rows == 2000
    assert [feature.name for feature in made.train.schema] == ["user", "item", "click"]


def test_the_same_seed_draws_the_same_layers(path):
    def first(seed: int):
        made = launch(RunConfig.of({"data": {"path": path, "label": "click"}, "train": {"seed": seed}}))
        return next(made.trainer.model.parameters())

    assert first(1).equal(first(1))
    assert not first(1).equal(first(2))


def test_what_is_missing_is_asked_for(path):
    with pytest.raises(ValueError, match=r"which column is the label.*the data has user, item"):
        datasets(DataConfig(path=[path]))
    with pytest.raises(ValueError, match="there is no data to train on"):
        datasets(DataConfig(label=["click"]))
    with pytest.raises(ValueError, match=r"valid is 1.5; a share of the rows is above 0 and below 1"):
        datasets(DataConfig(path=[path], label=["click"], valid=1.5))
    with pytest.raises(ValueError, match=r"model 'din' needs 'history', names of features: model.history="):
        launch(RunConfig.of({"data": {"path": path, "label": "click"}, "model": {"name": "din"}}))


def test_csv_is_read_by_its_ending(tmp_path):
    (tmp_path / "a.csv").write_text("user,click\n1,0\n2,1\n")
    train, _ = datasets(DataConfig(path=[str(tmp_path / "a.csv")], label=["click"]))
    assert train.num_rows == 2


def test_batch_sizes_are_powers_of_two_within_bounds():
    assert [batch_size_for(rows) for rows in (0, 100_000, 10**6, 10**9)] == [64, 64, 1024, 8192]


def test_text_is_read_in_the_types_of_training(path, tmp_path):
    plain = pq.read_table(path).drop_columns(["tags"])
    pq.write_table(plain, path)  # age is float32 and click int8, which text does not tell
    pa.csv.write_csv(plain, tmp_path / "valid.csv")
    train, valid = datasets(DataConfig(path=[path], label=["click"], valid=str(tmp_path / "valid.csv")))
    assert valid.schema == train.schema
    assert next(iter(valid)).label.tolist() == plain["click"].to_pylist()[: valid.batch_size]


def test_a_value_of_another_kind_is_named(path):
    config = {"data": {"path": path, "label": "click"}, "optimizer": {"betas": 3}}
    with pytest.raises(ValueError, match=r"optimizer cannot be made with \{'betas': 3\}"):
        launch(RunConfig.of(config))
