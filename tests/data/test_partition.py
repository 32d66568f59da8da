"""Shares are disjoint, cover the data and differ by at most one row, whatever the groups and the world."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrec.data.partition import (
    Span,
    batch_count,
    count,
    cut,
    merge,
    share,
    shares,
    slice_of_batch,
    steps,
    take,
)


@st.composite
def span_lists(draw: st.DrawFn) -> list[Span]:
    """Groups of 0 to 40 rows in any order, each whole, a range, or a range under a mask."""
    spans = []
    for group in draw(st.permutations(range(draw(st.integers(0, 6))))):
        start = draw(st.integers(0, 20))
        mask = np.array(draw(st.lists(st.booleans(), max_size=40)), bool)
        masked = draw(st.booleans())
        keep = np.packbits(mask, bitorder="little").tobytes() if masked else None
        spans.append(Span(group, start, start + len(mask), keep))
    return spans


def flat(spans: list[Span]) -> list[tuple[int, int]]:
    return [(span.group, int(row)) for span in spans for row in span.indices()]


@settings(deadline=None)
@given(span_lists())
def test_a_span_counts_the_rows_it_lists(spans: list[Span]) -> None:
    assert [span.rows for span in spans] == [len(span.indices()) for span in spans]
    assert count(spans) == len(flat(spans))


@settings(deadline=None)
@given(span_lists(), st.integers(0, 250), st.integers(0, 250))
def test_take_equals_slicing_the_list_of_rows(spans: list[Span], start: int, stop: int) -> None:
    assert flat(take(spans, start, stop)) == flat(spans)[start:stop]
    assert flat(take(spans, start)) == flat(spans)[start:]


@settings(deadline=None)
@given(span_lists(), st.integers(1, 300))
def test_shares_of_every_world_cover_the_data_in_order_and_differ_by_one_row(spans: list[Span], world: int) -> None:
    parts = [share(spans, rank, world) for rank in range(world)]
    assert parts == list(shares(spans, world))
    assert [row for part in parts for row in flat(part)] == flat(spans)
    assert {count(part) for part in parts} <= {count(spans) // world, -(-count(spans) // world)}


@settings(deadline=None)
@given(span_lists())
def test_a_span_finds_the_row_at_each_position(spans: list[Span]) -> None:
    for span in spans:
        assert [span.row(position) for position in range(span.rows)] == span.indices().tolist()


@settings(deadline=None)
@given(span_lists(), st.integers(1, 25))
def test_cut_pieces_lie_inside_one_chunk_and_hold_the_same_rows(spans: list[Span], chunk: int) -> None:
    borders = np.append(np.arange(0, 60, chunk), 60)
    for span in spans:
        pieces = list(cut(span, borders))
        assert flat(pieces) == flat([span])
        assert all(piece.rows for piece in pieces)
        assert all(piece.start // chunk == (piece.stop - 1) // chunk for piece in pieces)


def test_cut_refuses_borders_that_end_before_the_span() -> None:
    with pytest.raises(AssertionError, match="beyond the last chunk border"):
        list(cut(Span(0, 0, 10), np.array([0, 8])))


@settings(deadline=None)
@given(span_lists(), st.lists(st.integers(0, 240), max_size=8))
def test_merge_keeps_the_rows_and_joins_what_a_cut_parted(spans: list[Span], points: list[int]) -> None:
    bounds = [0, *sorted(points), 240]
    parted = [span for a, b in pairwise(bounds) for span in take(spans, a, b)]
    merged = merge(parted)
    assert flat(merged) == flat(spans)
    plain = [span for span in spans if span.rows and span.keep is None]
    assert [span for span in merged if any(span.group == whole.group for whole in plain)] == plain


def test_merge_leaves_ranges_apart_that_only_look_alike() -> None:
    apart = [Span(0, 0, 2), Span(0, 3, 4), Span(1, 4, 5), Span(1, 0, 4)]
    assert merge(apart) == apart


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=50), st.integers(0, 9))
def test_a_span_of_a_mask_is_trimmed_and_drops_a_full_mask(mask: list[bool], start: int) -> None:
    span = Span.of_mask(3, np.array(mask, bool), start)
    assert span.indices().tolist() == [start + i for i, kept in enumerate(mask) if kept]
    if span.rows:
        assert span.start == span.indices()[0]
        assert span.stop == span.indices()[-1] + 1
    assert (span.keep is None) == (span.rows == span.stop - span.start)


def test_a_span_survives_pickling_with_its_count() -> None:
    span = Span.of_mask(3, np.array([True, False, True]), 5)
    copy = pickle.loads(pickle.dumps(span))
    assert (copy, copy.rows) == (span, 2)


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(AssertionError, match="1 mask bytes for 9 rows"):
        Span(0, 0, 9, b"\xff")


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 40))
def test_the_slices_of_a_batch_follow_one_another(length: int, world: int) -> None:
    slices = [slice_of_batch(length, rank, world) for rank in range(world)]
    assert [start for start, _ in slices] == [0, *(stop for _, stop in slices[:-1])]
    assert slices[-1][1] == length


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 12), st.integers(1, 40), st.booleans())
def test_steps_agree_with_counting_the_batches_of_every_rank(rows: int, world: int, size: int, drop: bool) -> None:
    spans = [Span(0, 0, rows)]
    counts = [batch_count(count(part), size, drop) for part in shares(spans, world)]
    assert steps(rows, world, size, drop_last=drop) == max(counts)
    assert steps(rows, world, size, uneven="stop", drop_last=drop) == min(counts)
    whole = [range(rows)[start : start + size] for start in range(0, rows, size)]
    kept = [batch for batch in whole if len(batch) == size or not drop]
    assert steps(rows, world, size, by="batch", drop_last=drop) == len(kept)


@pytest.mark.parametrize(("rank", "world", "message"), [(2, 2, "0 to 1"), (-1, 2, "rank=-1"), (0, 0, "world=0")])
def test_a_rank_outside_its_world_is_refused(rank: int, world: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share([Span(0, 0, 5)], rank, world)


def test_wrong_options_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'empty' .* or 'stop'"):
        steps(1, 1, 1, uneven="pad")  # pyright: ignore[reportArgumentType] the wrong name is the point
    with pytest.raises(ValueError, match="'rows' or 'batch'"):
        steps(1, 1, 1, by="files")  # pyright: ignore[reportArgumentType] the wrong name is the point
    with pytest.raises(ValueError, match="batch_size=0"):
        batch_count(1, 0)
    with pytest.raises(ValueError, match="position -1"):
        take([], -1, 2)
