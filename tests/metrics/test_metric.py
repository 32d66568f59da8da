"""What every metric promises, whichever it is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.metrics import AUC, NAMES, LogLoss, make
from tests.metrics.samples import clicks, counted, samples

every_metric = pytest.mark.parametrize("name", NAMES)


def same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-11, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))


def states_equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@every_metric
@settings(max_examples=30)
@given(sample=samples(), data=st.data())
def test_neither_the_split_into_batches_nor_the_order_of_merges_matters(name, sample, data):
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(sample), max_size=len(sample))))
    parts = [sample.part((owner == k).nonzero().flatten()) for k in data.draw(st.permutations(range(4)))]
    one = counted(name, sample)
    batched = counted(name, *parts)
    merged = counted(name)
    for half in (counted(name, *parts[2:]), counted(name, *parts[:2])):
        merged.merge(half)
    assert same(one.compute(), batched.compute())
    assert same(one.compute(), merged.compute())


@every_metric
def test_unweighted_counts_merge_to_the_same_bits_in_any_order(name):
    sample = clicks(3000)
    thirds = [counted(name, sample.part(torch.arange(k, 3000, 3))) for k in range(3)]
    forward, backward = counted(name), counted(name)
    for k in range(3):
        forward.merge(thirds[k])
        backward.merge(thirds[2 - k])
    assert forward.compute() == pytest.approx(backward.compute(), rel=1e-14)
    assert math.isfinite(forward.compute())


@every_metric
@settings(max_examples=20)
@given(first=samples(), second=samples())
def test_a_restored_metric_goes_on_to_the_same_bits(name, first, second):
    alive = counted(name, first, second)
    resumed = make(name)
    resumed.load_state_dict(counted(name, first).state_dict())
    resumed.update(*second.arguments())
    assert states_equal(resumed.state_dict(), alive.state_dict())
    assert resumed.compute() == alive.compute() or math.isnan(alive.compute())


@every_metric
def test_a_state_stays_as_it_was_when_more_rows_come(name):
    metric = counted(name, clicks(100))
    state = metric.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    metric.update(*clicks(100, seed=1).arguments())
    assert states_equal(state, kept)
    assert not states_equal(metric.state_dict(), kept)
    other = make(name)
    other.load_state_dict(state)
    other.update(*clicks(100, seed=1).arguments())
    assert states_equal(state, kept)


@every_metric
def test_nothing_seen_is_nan(name):
    metric = make(name)
    assert math.isnan(metric.compute())
    empty = torch.zeros(0)
    metric.update(empty, empty, empty, torch.zeros(0, dtype=torch.int64))
    assert math.isnan(metric.compute())
    metric.merge(make(name))
    assert math.isnan(metric.compute())


@every_metric
def test_an_empty_update_changes_nothing(name):
    metric = counted(name, clicks(500))
    before = metric.compute()
    metric.update(torch.zeros(0), torch.zeros(0), None, torch.zeros(0, dtype=torch.int64))
    assert metric.compute() == before


@every_metric
def test_reset_forgets_everything(name):
    metric = counted(name, clicks(500))
    metric.reset()
    assert math.isnan(metric.compute())
    metric.update(*clicks(300, seed=1).arguments())
    assert metric.compute() == counted(name, clicks(300, seed=1)).compute()


@every_metric
@settings(max_examples=20)
@given(sample=samples(weighted=True))
def test_rows_of_weight_zero_are_as_if_they_were_not_there(name, sample):
    kept = sample.part((sample.weights > 0).nonzero().flatten())
    assert same(counted(name, sample).compute(), counted(name, kept).compute())


@every_metric
def test_a_whole_weight_is_so_many_rows(name):
    sample = clicks(400, base=-1.0)
    times = torch.randint(0, 4, (400,))
    repeated = sample.part(torch.repeat_interleave(torch.arange(400), times))
    metric = make(name)
    metric.update(sample.scores, sample.labels, times, sample.groups)
    assert metric.compute() == pytest.approx(counted(name, repeated).compute(), rel=1e-12)


@every_metric
def test_a_score_that_is_not_a_number_is_an_error_and_counts_nothing(name):
    metric = counted(name, clicks(50))
    before = metric.state_dict()
    sample = clicks(50, seed=1)
    sample.scores[17] = math.nan
    with pytest.raises(ValueError, match=r"a score is nan: scores must be .*diverged"):
        metric.update(*sample.arguments())
    assert states_equal(metric.state_dict(), before)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rmse"])
@pytest.mark.parametrize(
    ("bad", "shown"), [(2.0, "2.0"), (-1.0, "-1.0"), (0.3, "0.3"), (math.nan, "nan"), (math.inf, "inf")]
)
def test_a_label_other_than_0_or_1_is_an_error_that_names_it(name, bad, shown):
    sample = clicks(50)
    sample.labels[3] = bad
    with pytest.raises(ValueError, match=f"a label is {shown}.*: labels must be 0 or 1"):
        make(name).update(*sample.arguments())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rmse"])
@pytest.mark.parametrize("bad", [-0.5, 1.5, math.inf, -math.inf])
def test_a_score_outside_0_to_1_is_an_error_that_names_it_and_the_remedy(name, bad):
    sample = clicks(50)
    sample.scores[3] = bad
    with pytest.raises(ValueError, match=f"a score is {bad}: .*torch.sigmoid"):
        make(name).update(*sample.arguments())


@every_metric
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_weight_below_zero_or_not_finite_is_an_error(name, bad):
    sample = clicks(50, weighted=True)
    sample.weights[3] = bad
    with pytest.raises(ValueError, match=f"a weight is {bad}"):
        make(name).update(*sample.arguments())


@every_metric
def test_columns_of_another_shape_are_an_error_that_names_them(name):
    metric, n = make(name), torch.zeros(4)
    with pytest.raises(ValueError, match=r"scores must be \[n\], got \[4, 1\]"):
        metric.update(n[:, None], n)
    with pytest.raises(ValueError, match=r"labels must be \[4\] as scores are, got \[3\]"):
        metric.update(n, n[:3])
    with pytest.raises(ValueError, match=r"weights must be \[4\] as scores are, got \[4, 2\]"):
        metric.update(n, n, torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"groups must be \[4\] as scores are, got \[5\]"):
        metric.update(n, n, None, torch.zeros(5, dtype=torch.int64))
    with pytest.raises(TypeError, match="groups must be integers"):
        metric.update(n, n, None, n)


@every_metric
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_other_types_are_taken_at_their_value(name, dtype):
    sample = clicks(300, base=-1.0)
    scores = sample.scores.to(dtype)
    metric = make(name)
    metric.update(scores, sample.labels, None, sample.groups)
    as_float = make(name)
    as_float.update(scores.float(), sample.labels, None, sample.groups)
    assert metric.compute() == pytest.approx(as_float.compute(), rel=1e-12)


@every_metric
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.bfloat16])
def test_labels_of_other_types_are_taken_at_their_value(name, dtype):
    sample = clicks(300, base=-1.0)
    metric = make(name)
    metric.update(sample.scores, sample.labels.to(dtype), None, sample.groups.to(torch.int64))
    assert metric.compute() == counted(name, sample).compute()


@every_metric
def test_updates_inside_and_outside_inference_mode_mix(name):
    sample = clicks(200, base=-1.0)
    metric = make(name)
    with torch.inference_mode():
        metric.update(sample.scores * 1, sample.labels, None, sample.groups)
    metric.update(sample.scores.clone().requires_grad_(), sample.labels, None, sample.groups)
    with torch.inference_mode():
        metric.update(sample.scores * 1, sample.labels, None, sample.groups)
        metric.compute()
        other = counted(name, sample)
    metric.merge(other)
    metric.update(*sample.arguments())
    assert metric.compute() == pytest.approx(counted(name, *[sample] * 5).compute(), rel=1e-12)


@every_metric
def test_a_metric_reset_or_restored_in_inference_mode_goes_on_outside(name):
    sample = clicks(200, base=-1.0)
    metric, resumed = counted(name, sample), make(name)
    with torch.inference_mode():
        resumed.load_state_dict(metric.state_dict())
        metric.reset()
    for each in (metric, resumed):
        each.update(*sample.arguments())
    assert metric.compute() == counted(name, sample).compute()
    assert resumed.compute() == counted(name, sample, sample).compute()


@every_metric
def test_deterministic_mode_works(name):
    torch.use_deterministic_algorithms(True)
    try:
        metric = counted(name, clicks(200, base=-1.0, weighted=True))
        assert math.isfinite(metric.compute())
    finally:
        torch.use_deterministic_algorithms(False)


@every_metric
def test_the_callers_tensors_stay_as_they_were_and_may_be_reused(name):
    sample = clicks(200, base=-1.0, weighted=True)
    copy = sample.part(torch.arange(200))
    metric = counted(name, copy)
    for mine, theirs in zip(sample.arguments(), copy.arguments(), strict=True):
        assert torch.equal(mine, theirs)
        theirs.zero_()
    assert metric.compute() == counted(name, sample).compute()


def test_unlike_metrics_do_not_merge():
    with pytest.raises(ValueError, match="cannot merge logloss into auc"):
        AUC().merge(LogLoss())


def test_a_state_of_another_metric_is_refused():
    with pytest.raises(ValueError, match=r"the totals of auc are float64 \[98305, 2\], got torch.float64 \[2\]"):
        AUC().load_state_dict(LogLoss().state_dict())
    with pytest.raises(ValueError, match="the state of auc has totals, got nothing"):
        AUC().load_state_dict({})
