"""Calibration: predicted over observed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from hybridrec.metrics import Calibration
from tests.metrics.samples import counted, samples


@given(samples())
def test_it_is_the_ratio_of_weighted_sums(sample):
    weights = torch.ones(len(sample)) if sample.weights is None else sample.weights
    observed = float(weights.double() @ sample.labels.double())
    wanted = float(weights.double() @ sample.scores.double()) / observed if observed else math.nan
    assert counted("calibration", sample).compute() == pytest.approx(wanted, rel=1e-12, nan_ok=True)


def test_a_model_that_predicts_twice_too_much_has_two():
    calibration = Calibration()
    calibration.update(torch.full((10,), 0.2), torch.tensor([1.0] + [0.0] * 9))
    assert calibration.compute() == pytest.approx(2, rel=1e-6)
