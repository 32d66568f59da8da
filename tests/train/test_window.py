"""What a record of training sums up."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from hybridrec.metrics import MetricSet
from hybridrec.train import window
from hybridrec.train.stages import Stages, wait_share
from hybridrec.train.step import StepResult
from hybridrec.train.window import Window
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
    assert 500 / spent <= record["samples_per_s"] <= 500 / (5 * 0.05)


def test_time_that_is_skipped_is_in_no_stage(monkeypatch):
    times = iter((1.0, 2.0, 4.0, 8.0, 16.0))
    monkeypatch.setattr("hybridrec.train.stages.perf_counter", lambda: next(times))
    stages = Stages()
    stages.enter("forward")
    stages.enter("other")
    stages.skip()
    assert {name: seconds for name, seconds in stages.take().items() if seconds} == {"other": 1.0 + 8.0, "forward": 2.0}
    assert wait_share({}) == 0.0


def windows(count: int) -> tuple[list[Window], list[StepResult]]:
    """Empty windows, and steps to put into them."""
    ds = dataset(500)
    learner = trainer_of(ds).learner
    steps = [StepResult(0.5, len(batch), len(batch), [batch], [torch.randn(len(batch))]) for batch in ds]
    return [Window(learner, MetricSet(("click",))) for _ in range(count)], steps


def test_batches_taken_together_have_the_metrics_of_each_taken_alone(monkeypatch):
    (together, alone), steps = windows(2)
    for step in steps:
        together.add(step)
    monkeypatch.setattr(window, "TOGETHER", 1)
    for step in steps:
        alone.add(step)
    found, wanted = together.take(), alone.take()
    assert found["auc"] == wanted["auc"]
    assert found["logloss"] == pytest.approx(wanted["logloss"], rel=1e-12)


def test_saving_half_way_changes_no_bit_of_a_record():
    (straight, saved, resumed), steps = windows(3)
    for step in steps[:3]:
        straight.add(step), saved.add(step)
    resumed.load_state_dict(saved.state_dict())
    for step in steps[3:]:
        straight.add(step), saved.add(step), resumed.add(step)
    wanted = straight.take()
    for other in (saved.take(), resumed.take()):
        assert {name: other[name] for name in ("loss", "auc", "logloss", "ne")} == {
            name: wanted[name] for name in ("loss", "auc", "logloss", "ne")
        }


def test_on_a_device_more_batches_are_taken_together_and_none_is_kept(monkeypatch):
    (plain,), steps = windows(1)
    learner = trainer_of(dataset(500)).learner
    learner.device = torch.device("cpu")
    on_device = Window(learner, MetricSet(("click",)))
    monkeypatch.setattr(window, "TOGETHER", 1)
    for step in steps:
        plain.add(step), on_device.add(step)
    assert not plain._waiting
    assert len(on_device._waiting) == len(steps)
    batches = {step.batches[0].label.untyped_storage().data_ptr() for step in steps}
    assert not batches & {part.labels.untyped_storage().data_ptr() for part in on_device._waiting}
    found, wanted = on_device.take(), plain.take()
    assert found["auc"] == wanted["auc"]
    assert found["logloss"] == pytest.approx(wanted["logloss"], rel=1e-12)


def test_a_window_that_was_closed_tells_its_figures_while_the_next_fills():
    (alone, pair), steps = windows(2)
    for step in steps[:3]:
        alone.add(step), pair.add(step)
    closed = pair.close()
    wanted = alone.take()
    for step in steps[3:]:
        alone.add(step), pair.add(step)
    found = pair.figures(closed)
    assert [found[name] for name in ("loss", "auc", "logloss")] == [wanted[name] for name in ("loss", "auc", "logloss")]
    found, wanted = pair.take(), alone.take()
    assert [found[name] for name in ("loss", "auc", "logloss")] == [wanted[name] for name in ("loss", "auc", "logloss")]
