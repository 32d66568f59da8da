"""A run that is loaded is the run that was trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hybridrec.models import NAMES, build
from hybridrec.train.load import load
from tests.train.clicks import QUIET, Trainer, clicks, dataset, trainer_of
from tests.train.test_trainer import Scores


def test_a_loaded_run_scores_as_the_trainer_did(tmp_path):
    ds = dataset(600)
    trainer = trainer_of(ds, out=tmp_path / "a")
    trainer.fit(ds, ds, epochs=2)
    run = load(tmp_path / "a", "latest")
    assert run.schema == ds.schema
    assert run.evaluate(ds) == trainer.evaluate(ds)
    np.testing.assert_array_equal(run.predict(clicks(50)), trainer.predict(clicks(50)))
    assert run.metrics["auc"] == trainer.history.valid[-1]["auc"]
    assert run.config["model"]["name"] == "deepfm"
    assert not run.model.training
    assert repr(run).startswith("Run('")


def test_best_is_the_checkpoint_of_the_best_validation(tmp_path):
    ds = dataset(600)
    trainer = trainer_of(ds, out=tmp_path / "a")
    trainer.fit(ds, ds, epochs=2)
    best = max(trainer.history.valid, key=lambda record: record["auc"])
    assert load(tmp_path / "a").evaluate(ds)["auc"] == best["auc"]


@pytest.mark.parametrize("name", NAMES)
def test_every_model_comes_back(tmp_path, name):
    options = {"din": {"history": {"tags": "item"}}, "twotower": {"item": ["item", "tags"]}}.get(name, {})
    ds = dataset(200)
    model = build(name, ds.schema, dim=4, **options)
    trainer = Trainer(
        model, out=tmp_path / "a", loss="in_batch_softmax" if name == "twotower" else "bce", options=QUIET
    )
    trainer.fit(ds, ds)
    np.testing.assert_array_equal(load(tmp_path / "a").predict(ds), trainer.predict(ds))


def test_a_model_of_ones_own_is_passed(tmp_path):
    ds = dataset(200)
    trainer = Trainer(Scores(), out=tmp_path / "a", options=QUIET)
    trainer.fit(ds)
    with pytest.raises(ValueError, match=r"the run's model is tests.*Scores, which is not of hybridrec; .* model="):
        load(tmp_path / "a")
    torch.manual_seed(9)
    run = load(tmp_path / "a", model=Scores())
    np.testing.assert_array_equal(run.predict(ds), trainer.predict(ds))


def test_a_loss_of_ones_own_is_passed_for_evaluation(tmp_path):
    ds = dataset(200)

    def own(outputs, batch):
        return (outputs - batch.label) ** 2

    trainer = trainer_of(ds, out=tmp_path / "a", loss=own)
    trainer.fit(ds)
    assert load(tmp_path / "a", loss=own).evaluate(ds) == trainer.evaluate(ds)
    with pytest.raises(ValueError, match=r"with a loss of your own; pass it to hybridrec.load as loss="):
        load(tmp_path / "a").evaluate(ds)
    assert load(tmp_path / "a").predict(ds).shape == (200,)


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no config.json; is it the folder of a run"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model": {}, "loss": "bce"}))
    with pytest.raises(FileNotFoundError, match="has no complete checkpoint yet"):
        load(tmp_path)


def test_a_checkpoint_may_be_given_by_its_name_and_an_unknown_one_lists_them(tmp_path):
    ds = dataset(300)
    trainer_of(ds, out=tmp_path / "a").fit(ds, steps=2)
    assert load(tmp_path / "a", "step-000000002").checkpoint == tmp_path / "a" / "checkpoints" / "step-000000002"
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint nope; .*/a has best, latest, step-000000002"):
        load(tmp_path / "a", "nope")
