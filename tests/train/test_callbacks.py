"""Callbacks: when they are called, what they may do, and that their state is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridrec.train import Callback
from hybridrec.train.callbacks import Callbacks
from tests.train.clicks import QUIET, dataset, trainer_of


class Diary(Callback):
    def __init__(self) -> None:
        self.events: list[str] = []

    def on_start(self, trainer):
        self.events.append("start")

    def on_step(self, trainer, result):
        self.events.append(f"step {trainer.step}")
        assert result.rows == 100
        assert len(result.outputs[0]) == 100

    def on_record(self, trainer, record):
        self.events.append(record["kind"])

    def on_validate(self, trainer, metrics):
        self.events.append("validate")
        assert 0 < metrics["auc"] < 1

    def on_epoch(self, trainer):
        self.events.append("epoch")

    def on_end(self, trainer):
        self.events.append("end")

    def state_dict(self):
        return {"events": list(self.events)}

    def load_state_dict(self, state):
        self.events = list(state["events"])


def test_they_are_called_in_order():
    ds, diary = dataset(200), Diary()
    trainer_of(ds, callbacks=[diary], options=replace(QUIET, log_every=2)).fit(ds, ds)
    assert diary.events == [
        *("start", "step 1", "train", "step 2", "epoch", "valid", "validate", "final", "end"),
    ]


def test_a_callback_may_stop_the_fit():
    class Stop(Callback):
        def on_step(self, trainer, result):
            if trainer.step == 3:
                trainer.stop("enough")

    ds = dataset(1000)
    trainer = trainer_of(ds, callbacks=[Stop()])
    history = trainer.fit(ds, epochs=2)
    assert trainer.step == 3
    assert history.final is not None
    assert history.final["reason"] == "enough"


def test_a_callback_may_stop_the_fit_at_a_validation():
    class Stop(Callback):
        def on_validate(self, trainer, metrics):
            trainer.stop("good enough")

    ds = dataset(300)
    trainer = trainer_of(ds, callbacks=[Stop()])
    trainer.fit(ds, ds, epochs=5)
    assert trainer.step == 3


def test_their_state_goes_with_the_checkpoint(tmp_path):
    ds = dataset(200)
    trainer_of(ds, out=tmp_path, callbacks=[Diary()]).fit(ds)
    again = Diary()
    trainer_of(ds, out=tmp_path, callbacks=[Callback(), again]).fit(ds, resume="auto")
    assert again.events == ["start", "step 1", "step 2", "train", "epoch", "final", "start", "end"]


def test_what_is_no_callback_is_refused():
    with pytest.raises(TypeError, match=r"derive its class from hybridrec.train.Callback"):
        Callbacks([print])  # type: ignore[list-item]
