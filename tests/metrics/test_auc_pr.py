"""Average precision against scikit-learn, and the bound of its error."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from sklearn.metrics import average_precision_score

from hybridrec.metrics import AUCPR
from tests.metrics.samples import clicks, counted, samples


def oracle(sample) -> float:
    return float(average_precision_score(sample.labels, sample.scores, sample_weight=sample.weights))


@given(samples(least=1))
def test_it_is_scikit_learns_within_its_own_error(sample):
    area = counted("auc_pr", sample)
    assume(not math.isnan(area.compute()))
    assert abs(area.compute() - oracle(sample)) <= area.error() + 1e-12


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("base", [-4.0, 0.0])
def test_skewed_scores_are_within_a_ten_thousandth_in_fact(base, weighted):
    sample = clicks(100_000, base=base, weighted=weighted)
    area = counted("auc_pr", sample)
    assert area.compute() == pytest.approx(oracle(sample), abs=1e-4)
    assert abs(area.compute() - oracle(sample)) < area.error() < 5e-3


def test_without_positives_it_is_nan_and_without_negatives_one():
    area = AUCPR()
    area.update(torch.tensor([0.3, 0.6]), torch.zeros(2))
    assert math.isnan(area.compute())
    area.reset()
    area.update(torch.tensor([0.3, 0.6]), torch.ones(2))
    assert area.compute() == 1
