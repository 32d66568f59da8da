"""Metrics by name."""

from __future__ import annotations

import pytest

from hybridrec.metrics import NAMES, make


def test_every_name_makes_a_metric_of_that_name():
    assert [make(name).name for name in NAMES] == list(NAMES)
    assert make("gauc:user_id").name == "gauc:user_id"
    assert make("gauc:a:b").column == "a:b"
    assert make("accuracy:0.2").name == "accuracy:0.2"
    assert make("accuracy:0.5").name == "accuracy"


def test_a_threshold_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="the threshold of 'accuracy:high' is 'high': write a number"):
        make("accuracy:high")


@pytest.mark.parametrize("name", ["acu", "", "AUC", "auc:user", "gauc:", ":x"])
def test_an_unknown_name_is_an_error_that_lists_the_names(name):
    with pytest.raises(ValueError, match=f"no metric '{name}'; the names are auc, .* rmse, and gauc:COLUMN"):
        make(name)
