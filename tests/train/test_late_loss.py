"""A loss that comes a step later; the GPU is played by a clock that is told when it is done."""

from __future__ import annotations

import math

import pytest
import torch

from hybridrec.train.late_loss import LateLoss, LossNotFinite, expected
from hybridrec.train.step import Learner, train_step
from tests.train.clicks import dataset, trainer_of


class Device:
    """A stream that brings a loss when somebody has asked a few times, and says by `done` that its work is done."""

    def __init__(self, there: torch.Tensor, loss: float, done: bool) -> None:
        self.there, self.loss, self.done, self.asked = there, loss, done, 0

    def record_event(self) -> Device:
        return self

    def query(self) -> bool:
        self.asked += 1
        if self.asked == 3:
            self.there.fill_(self.loss)
        return self.done and self.asked >= 3


def late(monkeypatch, loss: float, also=lambda: None, done: bool = False) -> tuple[LateLoss, Device]:
    there = torch.tensor(7.0)  # the last step's
    expected(there)
    device = Device(there, loss, done)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda at: device)
    return LateLoss(there, torch.tensor(loss), torch.zeros(100), next(iter(dataset())), also), device


def learner_with(found: LateLoss) -> Learner:
    learner = trainer_of(dataset()).learner
    learner.late = found
    return learner


def test_it_is_waited_for_once_and_outlives_its_place(monkeypatch):
    found, device = late(monkeypatch, 0.5)
    assert device.asked == 0
    assert float(found) == 0.5
    device.there.fill_(7.0)  # the next step's
    assert (float(found), device.asked) == (0.5, 3)


def test_it_is_known_before_its_step_is_done(monkeypatch):
    found, device = late(monkeypatch, 0.5, done=False)
    assert float(found) == 0.5
    assert not device.query()


def test_a_step_that_is_done_has_brought_its_loss_whatever_its_bits(monkeypatch):
    unlucky = torch.tensor(0.0)
    expected(unlucky)
    found, _ = late(monkeypatch, float("nan"), done=True)
    found._there = unlucky
    assert math.isnan(float(found))


def test_a_device_that_fails_is_not_waited_for_any_longer(monkeypatch):
    found, device = late(monkeypatch, 0.5)

    def failed() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device, "query", failed)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        float(found)


def test_the_next_step_checks_it_before_it_does_anything(monkeypatch):
    found, _ = late(monkeypatch, math.nan)
    learner = learner_with(found)
    rows = learner.model.embeddings["user"].clock  # pyright: ignore
    with pytest.raises(
        LossNotFinite, match=r"the loss is nan; the outputs of the model are finite.*kept still"
    ) as told:
        train_step(learner, [next(iter(dataset()))])
    assert told.value.late
    assert learner.late is None
    assert learner.model.embeddings["user"].clock == rows  # pyright: ignore
    assert math.isfinite(train_step(learner, [next(iter(dataset()))]).loss)


def test_what_else_is_known_then_is_told_first(monkeypatch):
    def fault() -> None:
        raise ValueError("id 200 of feature 'user' is outside table 'user'")

    learner = learner_with(late(monkeypatch, math.nan, fault)[0])
    with pytest.raises(ValueError, match="id 200"):
        learner.settle()
    learner.settle()  # told once


def test_a_finite_one_lets_training_go_on(monkeypatch):
    learner = learner_with(late(monkeypatch, 0.25)[0])
    learner.settle()
    assert learner.late is None
