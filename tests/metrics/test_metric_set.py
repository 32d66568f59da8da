"""Several metrics of several labels, together as each alone."""

from __future__ import annotations

import math

import pytest
import torch

from hybridrec.metrics import GAUC, NAMES, RMSE, CalibrationCurve, MetricSet, make
from tests.metrics.samples import clicks

ALL = tuple("gauc:user" if name == "gauc" else name for name in NAMES)


@pytest.fixture(scope="module")
def rows():
    """Scores, labels [B, 2], weights and groups of two labels."""
    click, like = clicks(600, base=-1.0, weighted=True), clicks(600, seed=1, base=0.0)
    both = [torch.stack([getattr(s, c) for s in (click, like)], 1) for c in ("scores", "labels")]
    return *both, click.weights, {"user": click.groups}


def test_each_label_has_each_metric_as_if_it_were_alone(rows):
    scores, labels, weights, groups = rows
    metrics = MetricSet(("click", "like"), ALL)
    metrics.update(*rows)
    found = metrics.compute()
    assert list(found) == [f"{label}/{name}" for label in ("click", "like") for name in ALL]
    for j, label in enumerate(("click", "like")):
        for name in ALL:
            alone = make(name)
            alone.update(scores[:, j], labels[:, j], weights, groups["user"])
            assert found[f"{label}/{name}"] == alone.compute()
            assert metrics[f"{label}/{name}"].compute() == alone.compute()


def test_one_label_needs_no_name_before_its_metrics(rows):
    scores, labels, *_ = rows
    flat, column = MetricSet(("click",)), MetricSet("click")
    flat.update(scores[:, 0], labels[:, 0])
    column.update(scores[:, :1], labels[:, :1])
    assert list(flat.compute()) == ["auc", "logloss", "ne", "calibration"]
    assert flat.compute() == column.compute()


def test_weights_may_differ_by_label(rows):
    scores, labels, weights, _ = rows
    metrics = MetricSet(("click", "like"), ("auc",))
    metrics.update(scores, labels, torch.stack([weights, torch.zeros(600)], 1))
    alone = MetricSet("click", ("auc",))
    alone.update(scores[:, 0], labels[:, 0], weights)
    assert metrics.compute()["click/auc"] == alone.compute()["auc"]
    assert math.isnan(metrics.compute()["like/auc"])


def test_sets_merge_restore_and_reset(rows):
    scores, labels, weights, groups = rows
    whole = MetricSet(("click", "like"), ALL)
    whole.update(*rows)
    halves = []
    for part in (slice(0, 250), slice(250, 600)):
        half = MetricSet(("click", "like"), ALL)
        half.update(scores[part], labels[part], weights[part], {"user": groups["user"][part]})
        halves.append(half)
    resumed = MetricSet(("click", "like"), ALL)
    resumed.load_state_dict(halves[1].state_dict())
    assert resumed.compute() == halves[1].compute()
    resumed.merge(halves[0])
    assert resumed.compute() == pytest.approx(whole.compute(), rel=1e-11)
    resumed.reset()
    assert all(math.isnan(value) for value in resumed.compute().values())


def test_an_error_in_one_label_counts_nothing_for_any(rows):
    scores, labels, weights, groups = rows
    metrics = MetricSet(("click", "like"), ALL)
    metrics.update(*rows)
    before = metrics.compute()
    bad = labels.clone()
    bad[5, 1] = 4
    with pytest.raises(ValueError, match=r"a label is 4.0"):
        metrics.update(scores, bad, weights, groups)
    with pytest.raises(TypeError, match="groups must be integers"):
        metrics.update(scores, labels, weights, {"user": torch.rand(600)})
    assert metrics.compute() == before


def test_metrics_may_be_given_as_patterns(rows):
    metrics = MetricSet(("click", "like"), (CalibrationCurve(points=4), GAUC("user", entries=50)))
    metrics.update(*rows)
    assert set(metrics.curves()) == {"click", "like"}
    assert len(metrics.curves()["click"].count) == 4
    summary = metrics["like/gauc:user"].summary()
    assert summary.share < 1
    assert MetricSet("click", ("auc",)).curves() == {}


def test_regression_alone_takes_any_labels_and_beside_others_only_theirs():
    scores, labels = torch.tensor([3.0, -1.0]), torch.tensor([2.0, 5.0])
    alone = MetricSet("stars", (RMSE(),))
    alone.update(scores, labels)
    assert alone.compute()["rmse"] == pytest.approx(math.sqrt((1 + 36) / 2))
    with pytest.raises(ValueError, match=r"a score is -1.0: scores must be probabilities"):
        MetricSet("stars", ("rmse", "auc")).update(scores, labels)


def test_it_knows_the_group_columns_it_needs(rows):
    metrics = MetricSet("click", ("gauc:user", "auc", "gauc:item"))
    assert metrics.group_columns == ("user", "item")
    with pytest.raises(ValueError, match="no groups for item; update wants groups of user, item"):
        metrics.update(rows[0][:, 0], rows[1][:, 0], None, rows[3])


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 1)])
def test_scores_of_another_shape_are_an_error(shape):
    metrics = MetricSet(("click", "like"))
    with pytest.raises(ValueError, match=r"scores must be \[B, 2\] for click, like, got"):
        metrics.update(torch.zeros(shape), torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"labels must be \[B, 2\] for click, like, got"):
        metrics.update(torch.zeros(5, 2), torch.zeros(shape))


def test_an_empty_batch_is_welcome():
    metrics = MetricSet(("click", "like"), ALL)
    metrics.update(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0), {"user": torch.zeros(0, dtype=torch.int64)})
    assert all(math.isnan(value) for value in metrics.compute().values())


@pytest.mark.parametrize(
    ("labels", "metrics", "message"),
    [
        ((), ("auc",), "needs one label"),
        (("click",), (), "one metric at least"),
        (("click", "click"), ("auc",), "label click is there twice"),
        (("click",), ("auc", "auc"), "metric auc is there twice"),
        (("click",), ("gauc",), "write gauc:COLUMN"),
        (("click",), ("auk",), "there is no metric 'auk'"),
    ],
)
def test_a_set_that_makes_no_sense_is_refused(labels, metrics, message):
    with pytest.raises(ValueError, match=message):
        MetricSet(labels, metrics)


def test_unlike_sets_and_states_are_refused():
    one, other = MetricSet("click", ("auc",)), MetricSet("click", ("logloss",))
    with pytest.raises(ValueError, match="cannot merge metrics logloss into auc"):
        one.merge(other)
    with pytest.raises(ValueError, match="the state has 'logloss/totals', but the metrics are auc"):
        one.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="the state of auc has totals, got nothing"):
        one.load_state_dict({})
    with pytest.raises(KeyError, match="no result 'click/auc'; there are auc"):
        one["click/auc"]


def test_a_copy_on_the_host_has_the_same_results_and_a_life_of_its_own(rows):
    metrics = MetricSet(("click", "like"), ALL)
    metrics.update(*rows)
    copy, found = metrics.on_host(), metrics.compute()
    assert copy.compute() == found
    scores, labels, *rest = rows
    metrics.update(scores, 1 - labels, *rest)
    changed = metrics.compute()
    assert copy.compute() == found != changed
    copy.reset()
    assert metrics.compute() == changed
