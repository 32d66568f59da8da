"""GAUC against a plain loop over groups, and how it stays within its memory."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hybridrec.metrics import GAUC, exact_auc
from hybridrec.metrics.group_hash import picked
from tests.metrics.samples import Sample, clicks, samples


def oracle(sample: Sample, groups: torch.Tensor | None = None) -> tuple[float, int, int]:
    """The value, and how many groups have both classes and one alone, by scikit-learn group for group."""
    weights = torch.ones(len(sample)) if sample.weights is None else sample.weights
    above = right = 0.0
    both = single = 0
    for group in sample.groups.unique() if groups is None else groups:
        rows = (sample.groups == group) & (weights > 0)
        labels, share = sample.labels[rows], weights[rows].double()
        both += (mixed := len(labels.unique()) == 2)
        single += len(labels.unique()) == 1
        if mixed:
            above += float(share.sum()) * roc_auc_score(labels, sample.scores[rows], sample_weight=share)
            right += float(share.sum())
    return above / right if right else math.nan, both, single


def gauc_of(*parts: Sample, entries: int = 1 << 22) -> GAUC:
    gauc = GAUC("user", entries)
    for part in parts:
        gauc.update(*part.arguments())
    return gauc


@given(samples())
def test_it_is_the_mean_of_scikit_learns_auc_weighted_by_rows(sample):
    value, both, single = oracle(sample)
    found = gauc_of(sample).summary()
    assert found.value == pytest.approx(value, abs=1e-12, nan_ok=True)
    assert (found.groups, found.one_class) == (both, single)


@pytest.mark.parametrize("weighted", [False, True])
def test_skewed_scores_in_many_groups_that_span_batches(weighted):
    sample = clicks(4000, base=-1.0, weighted=weighted)
    parts = [sample.part(rows) for rows in torch.randperm(4000).split(37)]
    value, both, single = oracle(sample)
    found = gauc_of(*parts).summary()
    assert found.value == pytest.approx(value, abs=1e-12)
    assert (found.groups, found.one_class) == (both, single)
    assert (found.share, found.binned) == (1.0, False)


def test_one_group_alone_has_the_auc_of_all_rows():
    sample = clicks(1000, base=-1.0)
    gauc = GAUC()
    gauc.update(sample.scores, sample.labels, None, torch.full((1000,), -(2**63)))
    assert gauc.compute() == pytest.approx(exact_auc(sample.scores, sample.labels), abs=1e-12)


def test_groups_of_one_class_alone_are_left_out_and_counted():
    gauc = GAUC()
    gauc.update(torch.rand(4), torch.tensor([1, 1, 0, 0]), None, torch.tensor([5, 5, 6, 6]))
    assert math.isnan(gauc.compute())
    assert (gauc.summary().groups, gauc.summary().one_class) == (0, 2)
    gauc.update(torch.zeros(1), torch.zeros(1), None, torch.tensor([5]))
    assert (gauc.summary().groups, gauc.summary().one_class) == (1, 1)


def test_groups_may_be_any_integers():
    sample = clicks(300, base=-1.0)
    small = torch.randint(0, 20, (300,))
    values = set()
    for dtype in (torch.int64, torch.int32, torch.uint8):
        gauc = GAUC()
        gauc.update(sample.scores, sample.labels, None, small.to(dtype))
        values.add(gauc.compute())
    assert len(values) == 1


def test_without_groups_it_says_what_it_needs():
    with pytest.raises(ValueError, match=r"gauc:user needs the group of each row; pass groups="):
        GAUC("user").update(torch.rand(3), torch.zeros(3))


# -- memory -------------------------------------------------------------------------------------------------


def held(gauc: GAUC) -> int:
    return sum(tensor.nbytes for tensor in gauc.state_dict().values())


def test_rows_take_twelve_bytes():
    assert held(gauc_of(clicks(1000), clicks(1000, seed=1))) == 12 * 2000 + 24


def test_equal_rows_become_one_before_anything_is_lost():
    sample = clicks(50, base=-1.0)
    gauc = gauc_of(*[sample] * 100, entries=50)
    assert gauc.summary() == gauc_of(sample).summary()
    assert gauc.compute() == pytest.approx(oracle(sample)[0], abs=1e-12)
    assert held(gauc) <= 20 * 2 * 50 + 24


def test_few_large_groups_are_binned_and_none_is_dropped():
    sample = clicks(60_000, base=-1.0)
    sample = Sample(sample.scores, sample.labels, None, sample.groups % 3)
    gauc = gauc_of(*(sample.part(rows) for rows in torch.arange(60_000).split(8192)), entries=45_000)
    found = gauc.summary()
    assert (found.groups, found.share, found.binned) == (3, 1.0, True)
    assert found.value == pytest.approx(oracle(sample)[0], abs=1e-6)


def test_many_groups_are_sampled_whole_and_the_bound_holds():
    sample = clicks(8000, base=-1.0)
    gauc = GAUC(entries=800)
    for rows in torch.arange(8000).split(500):
        gauc.update(*sample.part(rows).arguments())
        assert gauc._log.size <= 2 * 800
    found = gauc.summary()
    halvings = round(-math.log2(found.share))
    assert halvings >= 3
    chosen = sample.groups.unique()
    chosen = chosen[picked(chosen, halvings)]
    value, both, single = oracle(sample, chosen)
    assert found.value == pytest.approx(value, abs=1e-6)
    assert (found.groups, found.one_class) == (both, single)
    assert found.value == pytest.approx(oracle(sample)[0], abs=0.08)


@settings(max_examples=40)
@given(sample=samples(), entries=st.integers(1, 12), data=st.data())
def test_what_is_dropped_does_not_depend_on_order_splits_or_merges(sample, entries, data):
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(sample), max_size=len(sample))))
    parts = [sample.part((owner == k).nonzero().flatten()) for k in range(4)]
    one = gauc_of(sample, entries=entries)
    if data.draw(st.booleans()):
        one.compute()  # looking in between changes nothing either
    merged = gauc_of(parts[0], entries=entries)
    for part in data.draw(st.permutations(parts[1:])):
        merged.merge(gauc_of(part, entries=entries))
        if data.draw(st.booleans()):
            merged.compute()
    a, b = one.summary(), merged.summary()
    assert a.value == pytest.approx(b.value, abs=1e-12, nan_ok=True)
    assert (a.groups, a.one_class, a.share, a.binned) == (b.groups, b.one_class, b.share, b.binned)


@pytest.mark.parametrize("rows", [30, 900, 2500])
def test_what_was_cut_down_merges_with_what_was_not_either_way(rows):
    sample = clicks(3000, base=-1.0)
    few, many = sample.part(torch.arange(rows)), sample.part(torch.arange(rows, 3000))
    one = gauc_of(sample, entries=400).summary()
    assert one.groups > 10
    assert one.share < 0.5
    for first, second in ((few, many), (many, few)):
        merged = gauc_of(first, entries=400)
        merged.merge(gauc_of(second, entries=400))
        assert merged.summary() == one


@settings(max_examples=20)
@given(first=samples(), second=samples(), entries=st.integers(1, 12))
def test_a_restored_one_drops_the_same(first, second, entries):
    alive = gauc_of(first, second, entries=entries)
    resumed = GAUC("user", entries)
    resumed.load_state_dict(gauc_of(first, entries=entries).state_dict())
    resumed.update(*second.arguments())
    a, b = alive.summary(), resumed.summary()
    assert a == b or (math.isnan(a.value) and math.isnan(b.value))


def test_a_group_that_is_never_dropped_and_too_large_is_an_error(monkeypatch):
    monkeypatch.setattr("hybridrec.metrics.gauc.picked", lambda groups, _: torch.ones_like(groups, dtype=torch.bool))
    with pytest.raises(ValueError, match="one group of gauc:user alone needs 3 entries; raise entries="):
        gauc_of(clicks(3), entries=1).compute()


def test_other_limits_do_not_mix():
    with pytest.raises(ValueError, match="cannot merge gauc:user of 5 entries into one of 6"):
        GAUC("user", 6).merge(GAUC("user", 5))
    with pytest.raises(ValueError, match="is of 5 entries, this one of 6"):
        GAUC("user", 6).load_state_dict(GAUC("user", 5).state_dict())
    with pytest.raises(ValueError, match="entries is 0"):
        GAUC("user", 0)
    with pytest.raises(ValueError, match="cannot merge gauc:item into gauc:user"):
        GAUC("user").merge(GAUC("item"))
