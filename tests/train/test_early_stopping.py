"""Stopping when validation gets no better."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hybridrec.train import Callback, EarlyStopping
from hybridrec.train.early_stopping import Watch, is_higher_better
from tests.train.clicks import QUIET, dataset, model_of, trainer_of


def test_a_watch_counts_validations_since_the_best():
    watch = Watch("auc", min_delta=0.01)
    seen = [watch.see({"auc": value}) for value in (0.6, 0.605, 0.62, math.nan, 0.5)]
    assert seen == [True, False, True, False, False]
    assert (watch.best, watch.since) == (0.62, 2)


def test_lower_is_better_for_losses_unless_told():
    watch = Watch("loss")
    assert [watch.see({"loss": value}) for value in (0.6, 0.7, 0.5)] == [True, False, True]
    assert not is_higher_better("click/logloss")
    assert Watch("mine", "max").sign == 1


def test_an_unknown_metric_lists_those_there_are():
    with pytest.raises(ValueError, match="no metric 'acu' in validation; it has loss, auc"):
        Watch("acu").see({"loss": 0.5, "auc": 0.7})


def test_a_fit_stops_after_patience_validations_and_says_why(tmp_path):
    train, valid = dataset(500), dataset(300)
    options = replace(QUIET, validate_every=1, early_stopping=EarlyStopping("loss", patience=4, min_delta=10.0))
    trainer = trainer_of(train, out=tmp_path, options=options)
    history = trainer.fit(train, valid, epochs=9)
    assert trainer.step == 5
    assert history.final is not None
    assert history.final["reason"].startswith("loss was not better than ")


def test_restore_best_ends_with_the_weights_of_the_best_validation(tmp_path):
    train, valid = dataset(500), dataset(300)
    options = replace(QUIET, validate_every=1, early_stopping=EarlyStopping("age_of_step", 2, 0, "min", True))
    found = []

    class Worse(Callback):
        """Adds a metric that gets worse after the second validation."""

        def on_validate(self, trainer, metrics):
            metrics["age_of_step"] = float([3, 1, 2, 4][len(found)])
            found.append(metrics)

    trainer = trainer_of(train, out=tmp_path, options=options, callbacks=[Worse()])
    trainer.fit(train, valid, epochs=9)
    assert trainer.step == 4
    assert trainer.evaluate(valid)["loss"] == pytest.approx(found[1]["loss"], rel=1e-6)
    assert trainer.evaluate(valid)["loss"] != pytest.approx(found[3]["loss"], rel=1e-6)


def test_early_stopping_without_validation_is_refused():
    ds = dataset(100)
    trainer = trainer_of(ds, model_of(ds), options=replace(QUIET, early_stopping=EarlyStopping()))
    with pytest.raises(ValueError, match="early_stopping needs data to look at; pass validate="):
        trainer.fit(ds)


def test_a_metric_that_validation_will_not_have_is_refused_before_training():
    ds = dataset(100)
    trainer = trainer_of(ds, options=replace(QUIET, best="acu"))
    with pytest.raises(ValueError, match="no metric 'acu' in validation; it has loss, auc, logloss"):
        trainer.fit(ds, dataset(50))
    assert trainer.step == 0
