"""The order of rows is a function of its arguments, holds every row once, and mixes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.data.partition import Span, count
from hybridrec.data.shuffle import (
    Shuffle,
    Window,
    mix,
    permutation,
    permutation_reference,
    skip,
    windows,
)

SHUFFLES = st.none() | st.builds(Shuffle, st.integers(0, 2**64 - 1), st.none() | st.integers(1, 60), st.integers(1, 5))


def borders_every(chunk: int, rows: int = 64) -> Callable[[int], np.ndarray]:
    return lambda group: np.append(np.arange(0, rows, chunk), rows)


def rows_read(window: Window) -> list[tuple[int, int]]:
    laid_out = [(span.group, int(row)) for span in window.spans for row in span.indices()]
    return [laid_out[place] for place in window.order()]


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    sizes = draw(st.permutations([40, 40, 33, 21, 7, 1, 0]))[: draw(st.integers(0, 7))]
    kept, random = draw(st.sampled_from([1.0, 0.9, 0.3])), np.random.default_rng(draw(st.integers(0, 9)))
    return [Span.of_mask(group, random.random(size) < kept) for group, size in enumerate(sizes)]


@settings(deadline=None)
@given(span_lists(), SHUFFLES, st.integers(1, 20), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))
def test_windows_hold_every_row_once_in_pieces_of_one_chunk(
    spans: list[Span], shuffle: Shuffle | None, chunk: int, epoch: int, rank: int, era: int
) -> None:
    planned = list(windows(spans, borders_every(chunk), shuffle, epoch, rank, era))
    read = [row for window in planned for row in rows_read(window)]
    laid_out = [(span.group, int(row)) for span in spans for row in span.indices()]
    assert (read if shuffle is None else sorted(read)) == laid_out
    for window in planned:
        assert window.rows == count(window.spans) > 0
        assert all(span.start // chunk == (span.stop - 1) // chunk for span in window.spans)
    assert planned == list(windows(list(spans), borders_every(chunk), shuffle, epoch, rank, era))


@settings(deadline=None)
@given(span_lists(), st.integers(1, 60), st.integers(1, 20))
def test_a_window_closes_with_the_chunk_that_fills_it(spans: list[Span], rows: int, chunk: int) -> None:
    planned = list(windows(spans, borders_every(chunk), Shuffle(0, rows), 0, 0, 0))
    assert all(count(window.spans[:-1]) < rows for window in planned)
    assert all(window.rows >= rows for window in planned[:-1])


def test_without_a_shuffle_rows_are_read_in_order_chunk_by_chunk() -> None:
    planned = list(windows([Span(5, 0, 5), Span(2, 1, 3)], borders_every(2), None, 0, 0, 0))
    assert [(w.spans[0].group, w.spans[0].start, w.spans[0].stop, w.key) for w in planned] == [
        (5, 0, 2, None),
        (5, 2, 4, None),
        (5, 4, 5, None),
        (2, 1, 2, None),
        (2, 2, 3, None),
    ]


def test_the_first_window_mixes_rows_of_as_many_groups_as_there_are_lanes() -> None:
    spans = [Span(group, 0, 64) for group in range(20)]
    first = next(windows(spans, borders_every(16), Shuffle(0, rows=64, lanes=4), 0, 0, 0))
    assert len({span.group for span in first.spans}) == 4
    groups = [group for group, _ in rows_read(first)]
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes > 32  # 3/4 of 63 neighbours are expected to differ; laid end to end only 3 would


def test_a_lane_takes_the_next_group_in_the_turn_in_which_its_own_has_ended() -> None:
    seed = next(seed for seed in range(100) if permutation(3, mix(seed, 0, 0)).tolist() == [0, 1, 2])
    spans = [Span(0, 0, 2), Span(1, 0, 6), Span(2, 0, 4)]
    planned = windows(spans, borders_every(2), Shuffle(seed, 4, lanes=2), 0, 0, 0)
    pieces = [(span.group, span.start) for window in planned for span in window.spans]
    assert pieces == [(0, 0), (1, 0), (2, 0), (1, 2), (2, 2), (1, 4)]


def test_spans_of_one_group_stay_in_one_lane() -> None:
    spans = [Span(0, 0, 4), Span(0, 6, 10), Span(1, 0, 8)]
    first = next(windows(spans, borders_every(2, 10), Shuffle(0, 4, lanes=2), 0, 0, 0))
    assert {span.group for span in first.spans} == {0, 1}
    assert [span.start for span in first.spans] == [0, 0]


def test_epoch_era_and_seed_change_the_order_of_groups_and_rank_changes_the_permutation() -> None:
    spans = [Span(group, 0, 64) for group in range(30)]

    def plan(seed: int = 0, epoch: int = 0, rank: int = 0, era: int = 0) -> list[Window]:
        return list(windows(spans, borders_every(16), Shuffle(seed, 128), epoch, rank, era))

    def order(plan: list[Window]) -> list[int]:
        return [span.group for window in plan for span in window.spans]

    orders = [order(plan()), order(plan(seed=1)), order(plan(epoch=1)), order(plan(era=1))]
    assert len({tuple(groups) for groups in orders}) == 4
    assert order(plan()) == order(plan(rank=1))
    keys = [window.key for rank in range(3) for window in plan(rank=rank)]
    assert len(set(keys)) == len(keys)


def test_rows_none_permutes_everything_in_one_window() -> None:
    only = list(windows([Span(0, 0, 40), Span(1, 0, 40)], borders_every(16), Shuffle(0, None), 0, 0, 0))
    assert [window.rows for window in only] == [80]
    assert rows_read(only[0]) != sorted(rows_read(only[0]))


def test_windows_are_planned_lazily() -> None:
    asked: list[int] = []

    def borders(group: int) -> np.ndarray:
        asked.append(group)
        return np.array([0, 8])

    next(windows([Span(group, 0, 8) for group in range(1000)], borders, Shuffle(0, 32, lanes=4), 0, 0, 0))
    assert len(asked) == 4


@settings(deadline=None)
@given(span_lists(), SHUFFLES, st.integers(0, 300))
def test_skip_hands_out_what_follows_the_rows_read(spans: list[Span], shuffle: Shuffle | None, read: int) -> None:
    planned = list(windows(spans, borders_every(8), shuffle, 0, 0, 0))
    rest = [row for window, done in skip(planned, read) for row in rows_read(window)[done:]]
    assert rest == [row for window in planned for row in rows_read(window)][read:]
    assert all(done < window.rows for window, done in skip(planned, read))


def test_the_permutation_of_a_key_never_changes() -> None:
    assert permutation_reference(12, 7).tolist() == [8, 7, 11, 10, 6, 2, 1, 3, 5, 9, 0, 4]
    assert permutation_reference(8, 2**64 - 1).tolist() == [0, 5, 3, 4, 2, 1, 6, 7]
    assert mix(1, 2, 3, 4, 5) == 50979779778096717


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 2**64 - 1))
def test_the_native_permutation_equals_the_reference_and_is_one(n: int, key: int) -> None:
    order = permutation(n, key)
    assert order.dtype == np.int64
    assert order.tolist() == permutation_reference(n, key).tolist()
    assert sorted(order.tolist()) == list(range(n))


def test_permutations_of_many_keys_are_uniform() -> None:
    seen = np.zeros((5, 5), int)
    for number in range(5000):
        seen[np.arange(5), permutation(5, mix(0, number))] += 1
    assert abs(seen - 1000).max() < 150  # 5 standard deviations are 141


def test_more_rows_than_a_window_can_index_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fewer than 2\*\*32 rows; set Shuffle"):
        permutation(2**32, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1, "rows": 8}, "seed=-1"),
        ({"seed": 2**64, "rows": 8}, r"0 to 2\*\*64 - 1"),
        ({"seed": 0, "rows": 0}, "None permutes all rows"),
        ({"seed": 0, "rows": 8, "lanes": 0}, "lanes=0"),
    ],
)
def test_a_shuffle_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shuffle(**options)
