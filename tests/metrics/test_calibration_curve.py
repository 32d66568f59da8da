"""The calibration curve: points of equal weight, means of what they hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from hybridrec.metrics import CalibrationCurve
from tests.metrics.samples import clicks, samples


def curve_of(sample, points: int = 20) -> CalibrationCurve:
    curve = CalibrationCurve(points)
    curve.update(sample.scores, sample.labels, sample.weights)
    return curve


def test_points_hold_equal_shares_of_skewed_scores():
    curve = curve_of(clicks(100_000)).curve()
    assert len(curve.count) == len(curve.predicted) == len(curve.observed) == len(curve.edges) - 1 == 20
    assert curve.count == pytest.approx([5000] * 20, rel=0.02)


def test_a_calibrated_model_lies_on_the_diagonal_and_a_shifted_one_does_not():
    sample = clicks(100_000)
    curve = curve_of(sample).curve()
    assert curve.observed == pytest.approx(curve.predicted, abs=5 * math.sqrt(0.2 / 5000))
    assert curve_of(sample).compute() < 0.005
    shifted = CalibrationCurve()
    shifted.update((sample.scores * 3).clamp(max=1), sample.labels)
    assert shifted.compute() > 0.03


@given(samples(), st.integers(1, 8))
def test_points_add_up_to_all_rows_and_lie_between_their_edges(sample, points):
    curve = curve_of(sample, points).curve()
    weights = torch.ones(len(sample)) if sample.weights is None else sample.weights
    assert len(curve.count) <= points
    assert sum(curve.count) == pytest.approx(float(weights.sum()))
    sums = [sum(n * x for n, x in zip(curve.count, part, strict=True)) for part in (curve.predicted, curve.observed)]
    wanted = [float(weights.double() @ column.double()) for column in (sample.scores, sample.labels)]
    assert sums == pytest.approx(wanted, abs=1e-9)
    for low, value, high in zip(curve.edges[:-1], curve.predicted, curve.edges[1:], strict=True):
        assert low - 1e-12 <= value <= high + 1e-12
    assert sorted(curve.edges) == curve.edges


def test_it_is_near_scikit_learns_curve_by_quantiles():
    sample = clicks(50_000, base=-1.0)
    curve = curve_of(sample, points=10).curve()
    observed, predicted = calibration_curve(sample.labels, sample.scores, n_bins=10, strategy="quantile")
    assert np.allclose(curve.predicted, predicted, rtol=2e-3)
    assert np.allclose(curve.observed, observed, rtol=2e-2)


def test_equal_scores_make_one_point():
    curve = CalibrationCurve()
    curve.update(torch.full((8,), 0.25), torch.tensor([0.0, 1.0] * 4))
    assert curve.curve().count == [8.0]
    assert curve.curve().predicted == [0.25]
    assert curve.curve().observed == [0.5]
    assert curve.compute() == 0.25


def test_a_score_of_many_rows_leaves_room_for_the_next():
    curve = CalibrationCurve(points=2)
    curve.update(torch.tensor([0.25, 0.25, 0.25, 0.75]), torch.zeros(4))
    assert curve.curve().count == [3.0, 1.0]


def test_nothing_seen_is_a_curve_without_points_and_all_goes_into_json():
    assert json.loads(json.dumps(CalibrationCurve().curve().to_dict())) == {
        "edges": [],
        "predicted": [],
        "observed": [],
        "count": [],
    }


def test_a_curve_of_no_points_is_refused():
    with pytest.raises(ValueError, match="points is 0"):
        CalibrationCurve(0)


def test_curves_of_other_points_merge_as_they_count_alike():
    a, b = CalibrationCurve(5), CalibrationCurve(10)
    b.update(torch.rand(100), torch.ones(100))
    a.merge(b)
    assert len(a.curve().count) == 5
