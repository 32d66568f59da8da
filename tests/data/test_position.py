"""However often the world changes inside an epoch, each row is read exactly once."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.data.partition import Span, count, slice_of_batch, steps
from hybridrec.data.position import Era, Position, remaining, walk
from hybridrec.data.shuffle import Shuffle, skip, windows

Row = tuple[int, int]

SHUFFLES = st.none() | st.builds(
    Shuffle, st.integers(0, 9), st.none() | st.sampled_from([1, 10, 25, 60]), st.integers(1, 4)
)
ERAS = st.builds(
    Era,
    st.sampled_from([1, 2, 3, 5, 60]),
    st.sampled_from([1, 3, 8, 20]),
    st.integers(0, 3),
    st.sampled_from(["rows", "batch"]),
)


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    """Up to seven groups of 0 to 40 rows in any order, whole or thinned out by a filter."""
    sizes = draw(st.permutations([40, 40, 33, 21, 7, 1, 0]))[: draw(st.integers(0, 7))]
    kept, random = draw(st.sampled_from([1.0, 0.9, 0.3])), np.random.default_rng(draw(st.integers(0, 9)))
    spans = [Span.of_mask(group, random.random(size) < kept) for group, size in enumerate(sizes)]
    return draw(st.permutations(spans))


def borders(group: int) -> np.ndarray:
    return np.array([0, 7, 14, 21, 28, 35, 40])


def flat(spans: list[Span]) -> list[Row]:
    return [(span.group, int(row)) for span in spans for row in span.indices()]


def rest_of(spans: list[Span], shuffle: Shuffle | None, position: Position, rank: int) -> list[Row]:
    """What the walk of one rank still holds, row by row in reading order."""
    path = walk(spans, borders, shuffle, position, rank)
    plan = windows(path.spans, borders, shuffle, position.epoch, path.rank, path.era)
    return [flat(list(w.spans))[place] for w, done in skip(plan, path.skip) for place in w.order()[done:]]


def batches(spans: list[Span], shuffle: Shuffle | None, position: Position, rank: int, number: int) -> list[list[Row]]:
    """The next batches of one rank, as a loader reads them."""
    era, rest = position.eras[-1], rest_of(spans, shuffle, position, rank)
    cuts = [rest[step * era.batch_size : (step + 1) * era.batch_size] for step in range(number)]
    if era.by == "rows":
        return cuts
    return [batch[slice(*slice_of_batch(len(batch), rank, era.world))] for batch in cuts]


@settings(max_examples=60, deadline=None)
@given(span_lists(), SHUFFLES, st.integers(0, 2), st.lists(ERAS, min_size=2, max_size=5))
def test_any_worlds_in_a_row_read_each_row_exactly_once(
    spans: list[Span], shuffle: Shuffle | None, epoch: int, eras: list[Era]
) -> None:
    read: list[Row] = []
    position = Position(epoch, (Era(eras[0].world, eras[0].batch_size, 0, eras[0].by),))
    for era in eras:
        position = position.resume(era.world, era.batch_size, era.by)
        for rank in range(era.world):
            read += chain.from_iterable(batches(spans, shuffle, position, rank, era.steps))
        position = position.advance(era.steps)
        left = remaining(spans, borders, shuffle, epoch, position.eras)
        assert sorted(read + flat(left)) == sorted(flat(spans))
    position = position.resume(3, 5)
    for rank in range(3):
        read += rest_of(spans, shuffle, position, rank)
    assert sorted(read) == sorted(flat(spans))


@settings(max_examples=60, deadline=None)
@given(span_lists(), SHUFFLES, ERAS, st.integers(0, 3))
def test_the_same_world_goes_on_with_the_very_next_batch(
    spans: list[Span], shuffle: Shuffle | None, era: Era, more: int
) -> None:
    start = Position(0, (Era(era.world, era.batch_size, 0, era.by),))
    later = start.advance(era.steps).resume(era.world, era.batch_size, era.by)
    for rank in range(min(era.world, 3)):
        through = batches(spans, shuffle, start, rank, era.steps + more)
        assert batches(spans, shuffle, later, rank, more) == through[era.steps :]


@settings(max_examples=60, deadline=None)
@given(span_lists(), SHUFFLES, st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4))
def test_by_batch_any_worlds_in_a_row_see_the_global_batches_of_one_rank(
    spans: list[Span], shuffle: Shuffle | None, worlds: list[tuple[int, int]]
) -> None:
    alone = Position(0, (Era(1, 6),))
    expected = batches(spans, shuffle, alone, 0, sum(number for _, number in worlds))
    position, seen = alone, []
    for world, number in worlds:
        position = position.resume(world, 6, "rows" if world == 1 else "batch")
        parts = [batches(spans, shuffle, position, rank, number) for rank in range(world)]
        seen += [list(chain(*slices)) for slices in zip(*parts, strict=True)]
        position = position.advance(number)
    assert seen == expected


def test_by_batch_another_batch_size_goes_on_in_the_same_order() -> None:
    spans, shuffle = [Span(group, 0, 40) for group in range(4)], Shuffle(0, rows=50, lanes=3)
    alone = Position(0, (Era(1, 10),))
    changed = alone.advance(3).resume(2, 25, "batch")
    assert rest_of(spans, shuffle, changed, 0) == rest_of(spans, shuffle, alone, 0)[30:]
    assert walk(spans, borders, shuffle, changed, 1).rows == 130


def test_an_era_by_rows_reads_its_rows_in_another_order_than_the_one_before() -> None:
    spans, shuffle = [Span(group, 0, 40) for group in range(8)], Shuffle(0, rows=80)
    position = Position(0, (Era(2, 4, steps=1),)).resume(2, 8)
    before = rest_of(spans, shuffle, Position(0, (Era(2, 4, steps=1),)), 0)
    assert len(rest_of(spans, shuffle, position, 0)) == len(before) == 156
    assert rest_of(spans, shuffle, position, 0) != before


@settings(deadline=None)
@given(span_lists(), SHUFFLES, ERAS)
def test_the_steps_of_an_era_are_those_after_which_nothing_remains(
    spans: list[Span], shuffle: Shuffle | None, era: Era
) -> None:
    rows = walk(spans, borders, shuffle, Position(0, (era,)), 0).rows
    assert rows == count(spans)
    needed = steps(rows, era.world, era.batch_size, by=era.by)
    assert remaining(spans, borders, shuffle, 0, [Era(era.world, era.batch_size, needed, era.by)]) == []
    if needed:
        assert remaining(spans, borders, shuffle, 0, [Era(era.world, era.batch_size, needed - 1, era.by)])


def test_only_the_window_a_rank_stood_in_is_marked_row_by_row() -> None:
    spans = [Span(group, 0, 40) for group in range(50)]
    left = remaining(spans, borders, Shuffle(0, rows=28, lanes=4), 0, [Era(2, 10, steps=5)])
    marked = [span for span in left if span.keep is not None]
    assert count(left) == 2000 - 100
    assert 1 <= len(marked) <= 2 * 5  # two ranks, windows of at most five chunks
    assert sum(span == Span(span.group, 0, 40) for span in left) > 30


def test_without_a_shuffle_what_remains_keeps_its_order_and_has_no_masks() -> None:
    spans = [Span(2, 0, 10), Span(0, 0, 10), Span(1, 0, 10)]
    left = remaining(spans, borders, None, 0, [Era(1, 4, steps=3), Era(2, 3, steps=1)])
    assert left == [Span(0, 5, 10), Span(1, 0, 1), Span(1, 4, 10)]


def test_an_untouched_epoch_and_one_of_nothing_remain_as_they_are() -> None:
    spans = [Span(0, 0, 10)]
    assert remaining(spans, borders, Shuffle(0, 5), 0, []) == spans
    assert remaining(spans, borders, Shuffle(0, 5), 0, [Era(4, 10)]) == spans
    assert remaining([], borders, Shuffle(0, 5), 0, [Era(4, 10, 3)]) == []


@pytest.mark.parametrize(
    ("eras", "then", "expected"),
    [
        ([Era(2, 8, 3)], (2, 8, "rows"), [Era(2, 8, 3)]),
        ([Era(2, 8, 3)], (4, 8, "rows"), [Era(2, 8, 3), Era(4, 8)]),
        ([Era(2, 8, 3)], (2, 4, "rows"), [Era(2, 8, 3), Era(2, 4)]),
        ([Era(2, 8)], (4, 8, "rows"), [Era(4, 8)]),
        ([Era(2, 8, 3), Era(4, 8)], (2, 8, "rows"), [Era(2, 8, 3)]),
        ([Era(2, 8, 3, "batch")], (4, 8, "batch"), [Era(4, 8, 3, "batch")]),
        ([Era(1, 8, 3)], (4, 8, "batch"), [Era(4, 8, 3, "batch")]),
        ([Era(2, 8, 3, "batch")], (4, 9, "batch"), [Era(2, 8, 3, "batch"), Era(4, 9, 0, "batch")]),
        ([Era(2, 8, 3, "batch")], (2, 8, "rows"), [Era(2, 8, 3, "batch"), Era(2, 8)]),
    ],
)
def test_a_world_that_goes_on_opens_an_era_only_where_one_is_needed(
    eras: list[Era], then: tuple[int, int, Any], expected: list[Era]
) -> None:
    assert Position(1, tuple(eras)).resume(*then) == Position(1, tuple(expected))


def test_the_next_epoch_starts_with_the_present_world() -> None:
    assert Position(3, (Era(2, 8, 5), Era(4, 8, 1))).next_epoch() == Position(4, (Era(4, 8),))


@settings(deadline=None)
@given(st.integers(0, 99), st.lists(ERAS, min_size=1, max_size=4))
def test_a_position_survives_json(epoch: int, eras: list[Era]) -> None:
    position = Position(epoch, tuple(eras))
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


GOOD = Position(0, (Era(2, 8, 3),)).to_json()


def test_the_json_of_format_1_never_changes() -> None:
    eras = [{"world": 2, "batch_size": 8, "steps": 3, "by": "rows"}]
    assert Position(0, (Era(2, 8, 3),)).to_json() == {"version": 1, "epoch": 0, "eras": eras}


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({**GOOD, "version": 2}, ValueError, "upgrade hybridrec"),
        ({**GOOD, "version": "1"}, ValueError, "reads format 1"),
        ({"epoch": 0, "eras": []}, ValueError, "format None is unknown"),
        ({**GOOD, "rank": 1}, ValueError, r"unknown here: \['rank'\]"),
        ({"version": 1, "epoch": 0}, ValueError, r"missing: \['eras'\]"),
        ({**GOOD, "eras": []}, ValueError, "at least one era"),
        ({**GOOD, "eras": 5}, TypeError, "eras .* are a list, not int"),
        ({**GOOD, "eras": [5]}, TypeError, "mapping, not int"),
        (
            {**GOOD, "eras": [{**GOOD["eras"][0], "size": 1}]},
            ValueError,
            "world, batch_size, steps, by; unknown",
        ),
        ({**GOOD, "eras": [{**GOOD["eras"][0], "by": "files"}]}, ValueError, "'rows' or by 'batch'"),
        ({**GOOD, "eras": [{**GOOD["eras"][0], "world": 0}]}, ValueError, "world=0: must be at least 1"),
        ({**GOOD, "eras": [{**GOOD["eras"][0], "steps": 1.5}]}, TypeError, "steps=1.5: an integer"),
        ({**GOOD, "epoch": True}, TypeError, "epoch=True"),
        ("state", TypeError, "mapping as made by to_json"),
    ],
)
def test_a_position_that_was_not_written_by_us_is_refused(state: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Position.from_json(state)


def test_a_rank_outside_the_present_world_is_refused() -> None:
    with pytest.raises(ValueError, match="rank=2: ranks of a world of 2 are 0 to 1"):
        walk([], borders, None, Position(0, (Era(2, 8),)), 2)
