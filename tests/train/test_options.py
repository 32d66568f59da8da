"""Options say what is wrong with them."""

from __future__ import annotations

import pytest

from hybridrec.train import EarlyStopping, Schedule, TrainOptions


def test_options_come_back_from_json():
    options = TrainOptions(
        clip_norm=1.0,
        schedule=Schedule("cosine", warmup=3),
        early_stopping=EarlyStopping(),
        label_weights={"click": 2.0},
    )
    assert TrainOptions.from_json(options.to_json()) == options
    assert TrainOptions.from_json({"schedule": "linear"}).schedule == Schedule("linear")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"acumulate": 2}, r"train has no option 'acumulate'; valid are clip_norm, accumulate, "),
        ({"accumulate": 0}, r"TrainOptions.accumulate is 0; it must be a whole number from 1 on"),
        ({"accumulate": 1.5}, r"accumulate is 1.5"),
        ({"clip_norm": 0.0}, r"clip_norm is 0.0; it must be above 0, or None"),
        ({"save_minutes": -1}, r"save_minutes is -1"),
        ({"progress": "loud"}, r"progress is 'loud'; valid are auto, lines, none"),
        ({"schedule": {"kind": "up"}}, r"Schedule.kind is 'up'; valid are constant, linear, cosine, inverse_sqrt"),
        ({"schedule": {"warm": 1}}, r"train.schedule has no option 'warm'; valid are kind, warmup, end, steps"),
        ({"early_stopping": {"patience": 0}}, r"EarlyStopping.patience is 0"),
        ({"early_stopping": {"mode": "up"}}, r"EarlyStopping.mode is 'up'; valid are auto, max, min"),
        ({"label_weights": {"click": -1}}, r"label_weights\['click'\] is -1"),
        ({"seed": "a"}, r"TrainOptions\.seed is 'a'; it must be a whole number from 0 on"),
        ({"schedule": 5}, r"TrainOptions\.schedule is 5; it must be a Schedule, such as Schedule\('cosine'\)"),
    ],
)
def test_a_wrong_option_is_named_with_the_rule(values, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions.from_json(values)
