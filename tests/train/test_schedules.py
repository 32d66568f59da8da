"""Learning rates over the steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hybridrec.train import Schedule
from hybridrec.train.schedules import factor, make_scheduler
from tests.train.clicks import QUIET, dataset, trainer_of


def test_the_curves_are_those_of_the_formulas():
    cosine = [factor(Schedule("cosine", end=0.1), step, 10) for step in (0, 5, 10, 99)]
    assert cosine == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert [factor(Schedule(warmup=4), step, None) for step in (0, 3, 4, 1000)] == [0.25, 1.0, 1.0, 1.0]
    assert factor(Schedule("inverse_sqrt", warmup=100), 400, None) == pytest.approx(1 / math.sqrt(4))


def test_both_optimizers_follow_their_own_schedule():
    ds = dataset(1000)  # 10 steps
    options = replace(QUIET, log_every=1, schedule=Schedule("linear"), row_schedule=Schedule(warmup=5))
    trainer = trainer_of(ds, options=options)
    trainer.fit(ds)
    assert trainer.history.values("lr", "train") == pytest.approx([2e-3 * (1 - n / 10) for n in range(1, 11)])
    assert trainer.history.values("row_lr", "train")[:5] == pytest.approx([0.008, 0.012, 0.016, 0.02, 0.02])


def test_a_curve_over_an_unknown_number_of_steps_is_refused():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(
        ValueError, match=r"schedule is 'cosine', but the number of steps is not known; give fit\(steps="
    ):
        make_scheduler(optimizer, Schedule("cosine"), None, "schedule")
    assert make_scheduler(optimizer, Schedule("cosine", steps=5), None, "schedule") is not None
    assert make_scheduler(optimizer, Schedule(), None, "schedule") is None
