"""A loss that comes a step later; the GPU is played by a clock that is told when it is done."""

from __future__ import annotations

import math
import weakref

import pytest
import torch

from hybridrec.train import late_loss
from hybridrec.train.late_loss import AHEAD, LateLoss, LateLosses, LossNotFinite
from hybridrec.train.step import Learner, train_step
from tests.train.clicks import dataset, trainer_of


class Device:
    """A stream that says by `done` whether its work is done; whoever waits for it has it done."""

    def __init__(self, done: bool) -> None:
        self.done, self.waits = done, 0

    def record_event(self) -> Device:
        return self

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.waits += not self.done
        self.done = True


def late(monkeypatch, loss: float, also=lambda: None, done: bool = False) -> tuple[LateLoss, Device]:
    device = Device(done)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda at: device)
    return LateLoss(torch.tensor(loss), torch.zeros(100), next(iter(dataset())), also), device


def learner_with(*found: LateLoss) -> Learner:
    learner = trainer_of(dataset()).learner
    for each in found:
        learner.losses.add(each)
    return learner


def test_it_is_waited_for_when_it_is_asked_for_and_outlives_its_place(monkeypatch):
    place = torch.tensor(0.5)
    device = Device(done=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda at: device)
    found = LateLoss(place, torch.zeros(100), next(iter(dataset())), lambda: None)
    place.fill_(7.0)  # the next step's
    assert (device.waits, found.known()) == (0, False)
    assert (float(found), float(found), device.waits, found.known()) == (0.5, 0.5, 1, True)


def test_one_that_is_known_is_not_asked_for_again(monkeypatch):
    found, device = late(monkeypatch, 0.5, done=True)
    assert found.known()
    device.done = False  # a stream that nobody has to ask any more
    found.check()
    assert (found.known(), float(found), device.waits) == (True, 0.5, 0)


def test_those_of_the_last_steps_are_not_waited_for(monkeypatch):
    found = [late(monkeypatch, 0.5) for _ in range(AHEAD + 2)]
    losses = LateLosses()
    for each, _ in found:
        losses.add(each)
        losses.check()
    assert [device.waits for _, device in found] == [1, 1, *[0] * AHEAD]
    losses.check(0)
    assert [device.waits for _, device in found] == [1] * (AHEAD + 2)


def test_of_steps_on_large_batches_only_the_last_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(late_loss, "LARGE", 1)
    found = [late(monkeypatch, 0.5) for _ in range(4)]
    losses = LateLosses()
    for each, _ in found:
        losses.add(each)
        losses.check()
    assert [device.waits for _, device in found] == [1, 1, 1, 0]


def test_a_batch_is_kept_until_its_loss_was_seen_to_be_finite(monkeypatch):
    batch = next(iter(dataset())).clone()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda at: Device(done=False))
    kept = weakref.ref(batch)
    found = LateLoss(torch.tensor(0.5), torch.zeros(100), batch, lambda: None)
    del batch
    assert kept() is not None
    found.check()
    assert kept() is None
    assert float(found) == 0.5


def test_one_that_is_known_is_told_at_once_with_how_long_ago_it_was(monkeypatch):
    fine, bad, next_one = late(monkeypatch, 0.5), late(monkeypatch, math.inf, done=True), late(monkeypatch, math.nan)
    losses = LateLosses()
    for each, _ in (fine, bad, next_one):
        losses.add(each)
    losses.check()  # nobody knows of the first, so nobody asks for others
    fine[1].done = True
    with pytest.raises(LossNotFinite, match="the loss is inf") as told:
        losses.check()
    assert told.value.late == 2
    losses.check(0)  # what came after it is not told too
    assert next_one[1].waits == 0


def test_the_next_step_checks_it_before_it_does_anything(monkeypatch):
    learner = learner_with(late(monkeypatch, math.nan, done=True)[0])
    rows = learner.model.embeddings["user"].clock  # pyright: ignore
    with pytest.raises(
        LossNotFinite, match=r"the loss is nan; the outputs of the model are finite.*kept still"
    ) as told:
        train_step(learner, [next(iter(dataset()))])
    assert told.value.late == 1
    assert learner.model.embeddings["user"].clock == rows  # pyright: ignore
    assert math.isfinite(train_step(learner, [next(iter(dataset()))]).loss)


def test_a_step_that_is_launched_kernel_by_kernel_waits_for_all_before_it(monkeypatch):
    (found, device) = late(monkeypatch, math.nan)
    learner = learner_with(found)
    with pytest.raises(LossNotFinite, match="the loss is nan"):
        train_step(learner, [next(iter(dataset()))])
    assert device.waits == 1


def test_what_else_is_known_then_is_told_first(monkeypatch):
    def fault() -> None:
        raise ValueError("id 200 of feature 'user' is outside table 'user'")

    learner = learner_with(late(monkeypatch, math.nan, fault)[0])
    with pytest.raises(ValueError, match="id 200"):
        learner.settle()
    learner.settle()  # told once


def test_a_finite_one_lets_training_go_on(monkeypatch):
    found, device = late(monkeypatch, 0.25)
    learner_with(found).settle()
    assert device.waits == 1
