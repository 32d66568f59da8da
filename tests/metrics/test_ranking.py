"""Areas of rankings against scikit-learn and all orders within ties."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from hybridrec.metrics.ranking import average_precision, average_precision_error, roc_area, roc_error

counts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any), min_size=1, max_size=6)


def columns(cells: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor(cells, dtype=torch.float64)
    return table[:, 0], table[:, 1]


def expanded(cells: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Labels and scores, a row for each count."""
    rows = [(label, score) for score, pair in enumerate(cells) for label in (0, 1) for _ in range(pair[label])]
    labels, scores = zip(*rows, strict=True)
    return list(labels), list(scores)


@given(counts)
def test_areas_are_those_of_scikit_learn(cells):
    negatives, positives = columns(cells)
    labels, scores = expanded(cells)
    assume(sum(labels) > 0)
    assert average_precision(negatives, positives) == pytest.approx(average_precision_score(labels, scores))
    assume(sum(labels) < len(labels))
    assert roc_area(negatives, positives) == pytest.approx(roc_auc_score(labels, scores))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any), min_size=1, max_size=3))
def test_no_order_within_ties_moves_an_area_further_than_its_error(cells):
    assume(all(any(pair[c] for pair in cells) for c in (0, 1)))
    negatives, positives = columns(cells)
    inside = [set(itertools.permutations([0] * n + [1] * p)) for n, p in cells]
    roc, precision = roc_area(negatives, positives), average_precision(negatives, positives)
    far_roc = far_precision = 0.0
    for order in itertools.product(*inside):
        labels = list(itertools.chain(*order))
        scores = range(len(labels))
        far_roc = max(far_roc, abs(roc_auc_score(labels, scores) - roc))
        far_precision = max(far_precision, abs(average_precision_score(labels, scores) - precision))
    assert far_roc == pytest.approx(roc_error(negatives, positives), abs=1e-12)  # and one order moves it so far
    assert far_precision <= average_precision_error(negatives, positives) + 1e-12


def test_one_class_has_no_area():
    none, some = torch.zeros(2).double(), torch.ones(2).double()
    assert math.isnan(roc_area(none, some))
    assert math.isnan(roc_area(some, none))
    assert math.isnan(roc_error(some, none))
    assert math.isnan(average_precision(some, none))
    assert math.isnan(average_precision_error(some, none))
    assert average_precision(none, some) == 1
    assert average_precision_error(none, some) == 0
