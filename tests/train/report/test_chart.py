"""Charts: ticks at round numbers, lines that break at gaps, few points that draw the same line."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.train.report.calibration import interval, read
from hybridrec.train.report.chart import Line, figure
from hybridrec.train.report.scale import span, tick_labels, ticks
from hybridrec.train.report.thin import smooth, thin

NAN = math.nan
numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(low=numbers, width=st.floats(1e-6, 1e12))
def test_ticks_lie_in_the_range_at_even_distances_and_have_labels_of_their_own(low, width):
    high = low + width
    if (high - low) / max(abs(low), abs(high)) < 1e-6:
        return
    found = ticks(low, high)
    assert 2 <= len(found) <= 12
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in found)
    steps = [b - a for a, b in zip(found, found[1:], strict=False)]  # noqa: RUF007  as below
    assert max(steps) - min(steps) <= 1e-3 * max(steps)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.52, 0.55), (0, 100_000), (1, 7), (0, 3e9), (0, 5e-5), (-0.02, 0.02)]
)
def test_labels_of_ticks_differ(low, high):
    labels = tick_labels(ticks(low, high))
    assert len(set(labels)) == len(labels)


def test_a_few_far_values_do_not_flatten_the_rest():
    values = [0.5 + 0.001 * i for i in range(100)]
    low, high = span([*values, 1e6])
    assert low < 0.5
    assert high < 1.0
    assert span([0.5, 1e6])[1] > 1e6


@given(st.lists(st.one_of(numbers, st.just(NAN)), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_extremes_order_and_the_limit(values, limit):
    points = [(float(x), y) for x, y in enumerate(values)]
    kept = thin(points, limit)
    assert len(kept) <= max(limit, 2)
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    known = [y for y in values if not math.isnan(y)]
    if known:
        assert {min(known), max(known)} <= {y for _, y in kept}


def test_a_long_gap_survives_thinning():
    points = [(float(x), NAN if 4000 < x < 6000 else 1.0) for x in range(10_000)]
    assert any(math.isnan(y) for _, y in thin(points, 100))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=200))
def test_smoothing_stays_between_the_extremes(values):
    made = smooth(list(enumerate(values)))
    assert all(min(values) - 1e-6 <= y <= max(values) + 1e-6 for _, y in made)


def test_smoothing_keeps_gaps():
    made = smooth([(0, 1.0), (1, NAN), (2, 3.0)], window=3)
    assert [math.isnan(y) for _, y in made] == [False, True, False]


def paths(svg: str) -> list[str]:
    return re.findall(r'd="(M[^"]*)" class="line', svg)


def test_a_line_breaks_where_values_are_missing():
    svg = figure("Loss", [Line("train", [(1, 1.0), (2, 2.0), (3, NAN), (4, 1.0), (5, math.inf), (6, 2.0)])])
    drawn = paths(svg)[0]
    assert (drawn.count("M"), drawn.count("L")) == (3, 1)
    assert svg.count("<circle") == 4
    assert "2 of 6 values are NaN or infinite" in svg


@pytest.mark.parametrize("points", [[], [(5, 0.5)], [(5, NAN)], [(1, 0.0), (2, 0.0)], [(0, 1e-300), (1, 1e300)]])
def test_odd_lines_give_charts_without_nan(points):
    svg = figure("Loss", [Line("train", points)])
    assert "nan" not in svg.lower().replace("values are nan", "")
    assert "inf" not in svg.replace("infinite", "")


def test_one_point_is_a_dot_in_the_middle_with_one_tick():
    svg = figure("Loss", [Line("train", [(50, 0.5)])])
    assert svg.count("<circle") == 1
    assert ">50<" in svg
    assert "49.5" not in svg


def test_the_charts_of_many_points_are_small():
    many = [(float(x), math.sin(x / 3000)) for x in range(100_000)]
    assert len(figure("Loss", [Line("train", many, noisy=True), Line("valid", many[::5000], 1)])) < 25_000


def test_bins_without_rows_are_left_out_and_intervals_hold_the_share():
    bins = read(
        {"predicted": [0.1, NAN, 0.9], "observed": [0.0, NAN, 1.0], "count": [5, 0, 7], "edges": [0, 0.3, 0.6, 1]}
    )
    assert [b.count for b in bins] == [5, 7]
    for b in bins:
        low, high = interval(b.observed, b.count)
        assert 0 <= low + 1e-12 <= b.observed + 1e-9
        assert b.observed - 1e-9 <= high <= 1 + 1e-12
