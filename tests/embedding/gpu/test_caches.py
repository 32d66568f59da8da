"""Which tables get a cache on a card, and how large: properties of the choice, without a card."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.caches import Candidate, caches

candidates = st.builds(Candidate, st.integers(1, 10**9), st.integers(8, 2000), st.integers(1, 4))


def taken(tables: list[Candidate], hot: list[int]) -> int:
    """What tables with so many hot rows take on a card, as memory.py counts it."""
    sizes = [
        rows * each.row_bytes + (rows * memory.SLOT + each.rows * memory.ENTRY) * (rows < each.rows)
        for each, rows in zip(tables, hot, strict=True)
    ]
    return sum(sizes)


@given(st.lists(candidates, max_size=8), st.integers(0, 10**12))
def test_what_is_chosen_fits_and_one_row_more_for_each_feature_would_not(tables, room):
    hot = caches(tables, room)
    if hot is None:
        assert room < sum(min(each.bytes(1), each.rows * each.row_bytes) for each in tables)
        return
    assert taken(tables, hot) <= room
    tiered = [each for each, rows in zip(tables, hot, strict=True) if rows < each.rows]
    if tiered:
        level = max(rows // each.features for each, rows in zip(tables, hot, strict=True) if rows < each.rows)
        assert sum(each.bytes(level + 1) for each in tables) > room


@given(st.lists(candidates, min_size=1, max_size=8))
def test_tables_that_fit_to_the_byte_are_whole(tables):
    whole = [each.rows for each in tables]
    room = sum(each.rows * each.row_bytes for each in tables)
    assert caches(tables, room) == whole
    assert caches(tables, room - 1) != whole


@given(st.lists(candidates, min_size=1, max_size=8), st.integers(0, 10**12))
def test_hot_rows_are_as_many_for_each_feature_of_every_table_that_is_not_whole(tables, room):
    hot = caches(tables, room) or []
    levels = {rows / each.features for each, rows in zip(tables, hot, strict=False) if rows < each.rows}
    assert len(levels) <= 1


def test_small_and_often_used_tables_stay_whole_and_the_largest_gets_a_cache():
    small, large, shared = Candidate(10_000, 100), Candidate(10**7, 100), Candidate(150_000, 100, features=3)
    hot = caches([small, large, shared], 10**8)
    assert hot is not None
    assert (hot[0], hot[2]) == (10_000, 150_000)
    assert 300_000 < hot[1] < 10**6


def test_bytes_are_those_of_a_table_with_that_cache():
    table = hr.Table("item", dim=16, rows=1000)
    one = Candidate(1000, memory.table_bytes(table) // 1000)
    assert one.bytes(200) == memory.table_bytes(hr.Table("item", dim=16, rows=1000, cache=200))
    assert one.bytes(1000) == memory.table_bytes(table)


def test_a_cache_that_would_take_more_room_than_the_table_is_none():
    narrow = Candidate(1000, 8)  # 4 bytes are kept of every row, and 8 of a hot one
    assert [narrow.hot(level) for level in (249, 250, 900)] == [249, 1000, 1000]


def test_without_tables_nothing_is_lacking():
    assert caches([], 0) == []
