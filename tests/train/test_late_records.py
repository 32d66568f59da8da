"""Where steps are replayed on a GPU, a record is written while later steps run. Here a CPU stands in for it."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridrec.train import Callback, Trainer
from hybridrec.train.late_loss import LossNotFinite
from hybridrec.train.late_records import LATE
from tests.train.clicks import QUIET, dataset, trainer_of
from tests.train.test_callbacks import Diary


class NoGraphs:
    """Graphs that take no batch."""

    def find(self, learner: Any, batch: Any) -> None:
        return None


def late(ds: Any, *callbacks: Callback, out: Path | None = None, log_every: int = 2, **options: Any) -> Trainer:
    trainer = trainer_of(ds, out=out, callbacks=callbacks, options=replace(QUIET, log_every=log_every, **options))
    trainer.learner.graphs = NoGraphs()  # pyright: ignore[reportAttributeAccessIssue]
    return trainer


def numbers(trainer: Trainer) -> list[dict[str, Any]]:
    """The records, without the times."""
    timed = {"time", "samples_per_s", "steps_per_s", "wait_share", "stages", "seconds"}
    return [{name: value for name, value in record.items() if name not in timed} for record in trainer.history]


def test_a_record_comes_before_whatever_else_is_recorded_told_or_saved():
    ds, diary = dataset(500), Diary()
    late(ds, diary).fit(ds, ds, epochs=1)
    assert diary.events == [
        *("start", "step 1", "step 2", "step 3", "step 4", "step 5", "train", "train", "train", "epoch"),
        *("valid", "validate", "final", "end"),
    ]


def test_a_record_comes_some_steps_later_by_a_thread_that_waits_for_its_figures():
    class Where(Diary):
        def on_record(self, trainer, record):
            super().on_record(trainer, record)
            self.events.append(threading.current_thread() is threading.main_thread())

    ds, diary = dataset(1200), Where()
    late(ds, diary, log_every=5).fit(ds, epochs=1)
    steps = [event for event in diary.events if event not in ("start", "epoch", "final", "end")]
    before = [f"step {number}" for number in range(1, 5 + LATE + 1)]
    assert steps[: len(before) + 1] == [*before, "train"]
    assert False not in steps, "callbacks are called by the thread of the fit"


def test_a_record_of_the_last_step_of_an_epoch_comes_before_its_end():
    ds, diary = dataset(200), Diary()
    late(ds, diary).fit(ds, epochs=1)
    assert diary.events == ["start", "step 1", "step 2", "train", "epoch", "final", "end"]


def test_where_nobody_is_told_of_epochs_the_next_one_begins_before_the_last_record_is_written():
    class Steps(Callback):
        def __init__(self) -> None:
            self.events: list[str] = []

        def on_step(self, trainer, result):
            self.events.append(f"step {trainer.step}")

        def on_record(self, trainer, record):
            self.events.append(f"{record['kind']} {record['step']} of epoch {record['epoch']}")

    ds, seen = dataset(200), Steps()
    late(ds, seen, log_every=100).fit(ds, epochs=2)
    steps = [f"step {number}" for number in range(1, 5)]
    assert seen.events == [*steps, "train 2 of epoch 0", "train 4 of epoch 1", "final 4 of epoch 2"]


def test_records_hold_what_they_would_have_held():
    ds, other = dataset(1100).shuffle(seed=1), dataset(1100).shuffle(seed=1)
    plain = trainer_of(other, options=replace(QUIET, log_every=2))
    plain.fit(other, other, epochs=2)
    trainer = late(ds)
    trainer.fit(ds, ds, epochs=2)
    assert numbers(trainer) == numbers(plain)
    assert [list(record) for record in trainer.history] == [list(record) for record in plain.history]


def test_a_checkpoint_knows_of_the_record_before_it(tmp_path):
    ds = dataset(1100)
    whole = late(ds, out=tmp_path / "a", save_every=4)
    whole.fit(ds, epochs=1)
    first = late(ds, out=tmp_path / "b", save_every=4)
    first.fit(ds, steps=6)
    rest = late(ds, out=tmp_path / "b", save_every=4)
    rest.fit(ds, epochs=1, resume="auto")
    assert [r for r in numbers(rest) if r["kind"] == "train"] == [r for r in numbers(whole) if r["kind"] == "train"]


@pytest.mark.parametrize("error", [OSError, FloatingPointError])
def test_an_error_loses_no_record_but_that_of_a_loss_that_is_lost(error):
    class Fail(Callback):
        def on_step(self, trainer, result):
            if trainer.step == 4:
                failure = error("no more")
                failure.late = 1  # pyright: ignore[reportAttributeAccessIssue] (it is the loss of step 4)
                raise failure

    ds = dataset(1000)
    trainer = late(ds, Fail())
    with pytest.raises(error, match="no more"):
        trainer.fit(ds, epochs=1)
    assert [record["step"] for record in trainer.history] == ([2, 4] if error is OSError else [2])


class LostLoss:
    """The loss of the last step, which nobody knows until he waits for it: it is not finite."""

    ahead = 4

    def known(self) -> bool:
        return False

    def check(self, ago: int) -> None:
        raise LossNotFinite(math.nan, torch.full((3,), math.nan), next(iter(dataset())), late=ago)


class Spoilt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer, result):
        if trainer.step == self.step:
            trainer.learner.losses.add(LostLoss())


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("told_of_epochs", [False, True])
def test_a_loss_that_was_lost_at_the_end_of_an_epoch_is_told_before_records_that_have_it(epochs, told_of_epochs):
    ds, diary = dataset(400), Diary()
    trainer = late(ds, Spoilt(4 * epochs), *([diary] if told_of_epochs else []))
    with pytest.raises(FloatingPointError, match=f"^step {4 * epochs}: the loss is nan"):
        trainer.fit(ds, epochs=epochs)
    assert [(r["kind"], r["step"]) for r in trainer.history] == [("train", n) for n in range(2, 4 * epochs, 2)]
    assert diary.events.count("epoch") == (epochs - 1) * told_of_epochs


def test_a_loss_that_was_lost_when_ctrl_c_came_is_told_with_its_step(tmp_path):
    class CtrlC(Callback):
        def on_step(self, trainer, result):
            if trainer.step == 4:
                signal.raise_signal(signal.SIGINT)

    ds = dataset(1000)
    trainer = late(ds, Spoilt(4), CtrlC(), out=tmp_path, save_every=3)
    with pytest.raises(FloatingPointError, match=r"^step 4: the loss is nan.*step-000000003 is saved; go on with fit"):
        trainer.fit(ds)
    assert [record["step"] for record in trainer.history] == [2]


def test_a_record_that_cannot_be_written_after_an_error_hides_it_from_nobody(caplog):
    class Full(Callback):
        ended = False

        def on_step(self, trainer, result):
            if trainer.step == 5:
                raise OSError("no more")

        def on_record(self, trainer, record):
            raise RuntimeError("the disk is full")

        def on_end(self, trainer):
            self.ended = True

    ds, full, before = dataset(1000), Full(), threading.active_count()
    with pytest.raises(OSError, match="no more"):
        late(ds, full).fit(ds, epochs=1)
    assert full.ended
    assert threading.active_count() == before
    assert "the disk is full" in caplog.text
