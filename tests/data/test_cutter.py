from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.data.account import Account
from hybridrec.data.assembly import Decoding
from hybridrec.data.cutter import Cutter
from hybridrec.data.partition import batch_count, slice_of_batch
from hybridrec.data.reading import Cuts
from tests.data.rows_in_groups import CHUNK, begun


def made(**cuts) -> Cutter:
    return Cutter(Cuts(**cuts), Account(1 << 30, row_bytes=8.0))


def decoded(cutter: Cutter, window: Decoding) -> None:
    window.undecoded = 0
    cutter.decoded(window)


def taken(cutter: Cutter) -> list[list[tuple[int, int, int]]]:
    """The batches that can be packed: the windows of each, and the rows of these."""
    found = []
    while cutter.first is not None:
        cut = cutter.take()
        found.append([(window.number, start, stop) for window, start, stop in cut.parts])
        cutter.packed(cut)
    return found


@given(
    sizes=st.lists(st.integers(1, 4), max_size=6),
    done=st.integers(0, CHUNK - 1),
    batch_size=st.integers(1, 20),
    world=st.integers(1, 3),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_ranks_together_cut_every_row_once_and_let_every_window_go(sizes, done, batch_size, world, drop_last, data):
    order = data.draw(st.permutations(range(len(sizes))))
    slices = []
    for rank in range(world):
        cutter = made(batch_size=batch_size, drop_last=drop_last, rank=rank, world=world)
        windows = [begun(n, *([(n, 0)] * size), done=done if n == 0 else 0) for n, size in enumerate(sizes)]
        for window in windows:
            cutter.add(window)
        cutter.end(whole=True)
        for number in order:
            decoded(cutter, windows[number])
        slices.append(taken(cutter))
        assert cutter.rows == 0
        assert not any(window.pieces for window in windows)
    rows = [(n, row) for n, size in enumerate(sizes) for row in range(0 if n else done, size * CHUNK)]
    count = len(rows) // batch_size if drop_last else batch_count(len(rows), batch_size)
    assert [len(cuts) for cuts in slices] == [count] * world
    for number in range(count):
        batch = rows[number * batch_size : (number + 1) * batch_size]
        for rank in range(world):
            first, last = slice_of_batch(len(batch), rank, world)
            parts = slices[rank][number]
            assert [(n, row) for n, start, stop in parts for row in range(start, stop)] == batch[first:last]


def test_a_batch_can_be_packed_when_its_windows_are_decoded_the_earliest_first():
    cutter = made(batch_size=6)
    windows = [begun(n, (0, n)) for n in range(3)]
    for window in windows:
        cutter.add(window)
    assert (cutter.count, cutter.first) == (2, None)
    decoded(cutter, windows[2])
    assert cutter.first is None, "the second batch begins in the second window"
    decoded(cutter, windows[1])
    assert cutter.first == 1
    decoded(cutter, windows[0])
    assert taken(cutter) == [[(0, 0, 4), (1, 0, 2)], [(1, 2, 4), (2, 0, 4)]]


def test_a_window_is_let_go_with_the_last_batch_that_needs_it():
    cutter, window = made(batch_size=2), begun(0, (0, 0))
    cutter.add(window)
    decoded(cutter, window)
    first, second = cutter.take(), cutter.take()
    cutter.packed(second)
    assert (cutter.rows, len(window.pieces)) == (CHUNK, 1)
    cutter.packed(first)
    assert (cutter.rows, len(window.pieces)) == (0, 0)


@pytest.mark.parametrize(("whole", "drop_last", "count"), [(True, False, 2), (True, True, 1), (False, False, 1)])
def test_a_short_last_batch_is_left_out_if_asked_or_if_windows_are_missing(whole, drop_last, count):
    cutter, window = made(batch_size=3, drop_last=drop_last), begun(0, (0, 0))
    cutter.add(window)
    cutter.end(whole)
    decoded(cutter, window)
    assert cutter.count == len(taken(cutter)) == count
    assert cutter.rows == 0
