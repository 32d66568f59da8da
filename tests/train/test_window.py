"""What a record of training sums up."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from hybridrec.train.stages import Stages, wait_share
from tests.train.clicks import QUIET, dataset, trainer_of


def test_the_loss_is_the_mean_over_the_rows_since_the_last_record():
    ds = dataset(1050)  # the last batch has 50 rows
    each = trainer_of(ds, options=replace(QUIET, log_every=1))
    all_at_once = trainer_of(ds, options=replace(QUIET, log_every=100))
    each.fit(ds)
    all_at_once.fit(ds)
    losses = each.history.values("loss", "train")
    assert len(losses) == 11
    wanted = (100 * sum(losses[:10]) + 50 * losses[10]) / 1050
    assert all_at_once.history.values("loss", "train") == pytest.approx([wanted])


def test_stages_add_up_to_the_time_and_waiting_is_told():
    class Slow:
        """Data that keeps one waiting."""

        def __init__(self, ds) -> None:
            self.ds, self.schema = ds, ds.schema

        def __iter__(self):
            for batch in self.ds:
                time.sleep(0.05)
                yield batch

    ds = dataset(500)
    trainer = trainer_of(ds, options=replace(QUIET, log_every=5))
    began = time.perf_counter()
    trainer.fit(Slow(ds))
    spent = time.perf_counter() - began
    record = trainer.history.train[0]
    assert record["stages"]["data"] >= 0.05
    assert 5 * sum(record["stages"].values()) <= spent
    assert record["wait_share"] == pytest.approx(record["stages"]["data"] / sum(record["stages"].values()), rel=1e-3)
    assert record["samples_per_s"] == pytest.approx(500 / (5 * sum(record["stages"].values())), rel=0.2)


def test_time_that_is_skipped_is_in_no_stage():
    stages = Stages()
    stages.enter("forward")
    stages.enter("other")
    time.sleep(0.05)
    stages.skip()
    assert sum(stages.take().values()) < 0.04
    assert wait_share({}) == 0.0
