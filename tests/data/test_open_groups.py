from __future__ import annotations

from itertools import islice

import pytest

from hybridrec.data.assembly import Piece
from hybridrec.data.decode import Rows
from hybridrec.data.open_groups import OpenGroups
from hybridrec.data.reading import Cuts
from hybridrec.data.source import BadFile
from tests.data.rows_in_groups import CHUNK, ROWS, Groups, begun


@pytest.fixture
def source() -> Groups:
    return Groups()


@pytest.fixture
def groups(source) -> OpenGroups:
    return OpenGroups(source, source.decoder, source.plan(Cuts(1)))


def place(piece: Piece | None) -> tuple[int, int]:
    assert piece is not None
    return piece.span.group, piece.chunk_number


def read(groups: OpenGroups, piece: Piece) -> None:
    piece.data = groups.read(piece, False, lambda: False)
    groups.done(piece)


def test_of_each_group_one_piece_can_be_taken_at_a_time(groups):
    for number in range(3):
        groups.add(begun(number, (0, number)).pieces[0])
        groups.add(begun(number, (1, number)).pieces[0])
    first, second = groups.take(), groups.take()
    assert [place(first), place(second)] == [(0, 0), (1, 0)]
    assert groups.first is None
    read(groups, second)
    assert place(groups.first) == (1, 1)
    read(groups, first)
    assert place(groups.take()) == (1, 1), "of one window, what was ready first"


def test_the_piece_of_the_earliest_window_comes_first(groups):
    for number, chunk in ((7, (0, 0)), (3, (1, 0)), (5, (2, 0))):
        groups.add(begun(number, chunk).pieces[0])
    assert [place(groups.take())[0] for _ in range(3)] == [1, 2, 0]


def test_a_group_is_opened_once_for_all_its_pieces_and_closed_after_its_last_row(source, groups):
    for number in range(ROWS // CHUNK):
        groups.add(begun(number, (1, number)).pieces[0])
    for _ in range(ROWS // CHUNK):
        assert len(groups) == 1
        read(groups, groups.take())
    assert len(groups) == 0
    assert source.opened == [(1, False)]


def test_chunks_before_a_piece_are_passed_over_and_it_gets_its_own(source, groups):
    groups.add(begun(0, (2, 1)).pieces[0])
    chunk = groups.read(groups.take(), True, lambda: False)
    batch = source.decoder.pack([chunk], Rows(CHUNK, runs=[[0, 0, CHUNK]]), lambda chunk, row: "")
    assert batch.ids.values.tolist() == [28, 29, 30, 31]
    assert source.opened == [(2, True)]


def test_after_a_piece_that_could_not_be_read_its_group_is_opened_anew(source, groups):
    for number in range(3):
        groups.add(begun(number, (0, number)).pieces[0])
    read(groups, groups.take())
    broken = groups.take()
    groups.read(broken, False, lambda: False)
    groups.done(broken)  # without its data
    read(groups, groups.take())
    assert source.opened == [(0, False)] * 2


def test_a_group_that_ends_early_is_a_bad_file(source, monkeypatch):
    whole = source.open
    monkeypatch.setattr(source, "open", lambda *how: islice(whole(*how), 2))
    groups = OpenGroups(source, source.decoder, source.plan(Cuts(1)))
    groups.add(begun(0, (0, 2)).pieces[0])
    with pytest.raises(BadFile, match="ended before its last row") as bad:
        groups.read(groups.take(), False, lambda: False)
    assert (bad.value.file, bad.value.row_group) == ("a.parquet", 0)


def test_who_reads_up_to_a_piece_gives_up_once_the_loader_is_closed(groups):
    groups.add(begun(0, (0, 2)).pieces[0])
    with pytest.raises(InterruptedError, match="closed"):
        groups.read(groups.take(), False, lambda: True)
