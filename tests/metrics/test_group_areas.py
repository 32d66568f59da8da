"""Entries in order and merged, and areas of groups one by one."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given

from hybridrec.metrics import exact_auc
from hybridrec.metrics.entries import Entries, entries_of
from hybridrec.metrics.group_areas import group_areas, in_order, merged
from hybridrec.metrics.rows import as_rows
from tests.metrics.samples import Sample, samples


def table(entries: Entries) -> list[tuple[int, int, float]]:
    return list(zip(entries.groups.tolist(), entries.keys.tolist(), entries.mass.tolist(), strict=True))


def entries(sample: Sample) -> Entries:
    return entries_of(as_rows(*sample.arguments()))


@given(samples())
def test_merging_keeps_the_weight_of_every_group_score_and_label(sample):
    wanted = Counter()
    for group, key, mass in table(entries(sample)):
        wanted[group, key] += mass
    assert table(merged(in_order(entries(sample)))) == [
        (*place, mass) for place, mass in sorted(wanted.items()) if mass
    ]


def test_entries_that_are_all_different_and_count_one_stay_without_weights():
    distinct = Entries(torch.tensor([2, 4, 6], dtype=torch.int32), None, torch.tensor([1, 1, 0]))
    assert merged(in_order(distinct)).weights is None
    assert merged(in_order(distinct)).keys.tolist() == [6, 2, 4]


def test_labels_in_any_order_within_a_score_are_merged_into_order():
    mixed = Entries(torch.tensor([5, 4, 5, 4, 9], dtype=torch.int32), None, torch.zeros(5, dtype=torch.int64))
    assert table(merged(mixed)) == [(0, 4, 2.0), (0, 5, 2.0), (0, 9, 1.0)]


def test_equal_scores_at_the_border_of_two_groups_are_no_tie():
    keys = torch.tensor([1, 4, 5, 8], dtype=torch.int32)  # positive, negative | positive of that score, negative
    areas = group_areas(Entries(keys, None, torch.tensor([1, 1, 2, 2])))
    assert areas.right.tolist() == [0.0, 0.0]


@given(samples())
def test_each_group_has_the_exact_area_of_its_rows(sample):
    areas = group_areas(merged(in_order(entries(sample))))
    found = (areas.right / (areas.negatives * areas.positives)).tolist()
    weights = torch.ones(len(sample)) if sample.weights is None else sample.weights
    seen = sample.groups[weights > 0].unique()
    assert len(found) == len(seen)
    for value, group in zip(found, seen, strict=True):
        rows = sample.groups == group
        wanted = exact_auc(sample.scores[rows], sample.labels[rows], weights[rows])
        assert math.isnan(wanted) or value == pytest.approx(wanted, abs=1e-12)
