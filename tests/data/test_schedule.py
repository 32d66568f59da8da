"""Work as one thread would do it, and as several might: no thread is needed to ask what is to be done."""

from __future__ import annotations

import pytest

from hybridrec.data.assembly import Cut, Piece
from hybridrec.data.effort import Effort
from hybridrec.data.open_groups import OpenGroups
from hybridrec.data.reading import Cuts
from hybridrec.data.schedule import LOCKED, Schedule
from hybridrec.types import Batch
from tests.data.rows_in_groups import CHUNK, ROWS, Groups, in_order, window

ANY = 1 << 30


class Work:
    """A schedule, and the hands that do what it says."""

    def __init__(
        self,
        groups: int = 3,
        *,
        memory: int = ANY,
        threads: int = 2,
        prefetch: int = 2,
        batch_size: int = CHUNK,
        ahead_rows: int = 1000,
        page_locked: bool = False,
        before: Work | None = None,
    ) -> None:
        self.source, effort = Groups(groups), Effort(threads, prefetch, memory)
        plan = self.source.plan(Cuts(batch_size), ahead_rows)
        opened = OpenGroups(self.source, self.source.decoder, plan)
        self.schedule = Schedule(opened, plan, effort, page_locked, None if before is None else before.schedule)

    def plan(self) -> Work:
        """All windows there are, in order."""
        for each in in_order(self.source.count):
            self.schedule.add(each, 0)
        self.schedule.end(whole=True)
        return self

    def decode(self, piece: Piece) -> None:
        piece.data = self.schedule.read(piece)
        self.schedule.decoded(piece)

    def pack(self, cut: Cut) -> None:
        chunks = [piece.data for piece in cut.pieces() if piece.data]
        self.schedule.packed(cut, self.source.decoder.pack(chunks, cut.rows(), lambda chunk, row: ""))

    def work(self) -> int:
        """Do what may be done until nothing may; the batches packed."""
        packed = 0
        while self.schedule.has_job:
            if (cut := self.schedule.next_cut()) is not None:
                self.pack(cut)
                packed += 1
            elif (piece := self.schedule.next_piece()) is not None:
                self.decode(piece)
        return packed

    def take(self, count: int) -> list[Batch]:
        taken = [self.schedule.take() for _ in range(count)]
        assert None not in taken
        return [batch for batch in taken if batch is not None]


def test_all_batches_come_in_order_and_nothing_is_held_at_the_end():
    work, rows = Work(batch_size=5).plan(), []
    while not work.schedule.ended:
        work.work()
        rows += work.take(1)[0].ids.values.tolist()
    assert rows == list(range(3 * ROWS))
    assert work.schedule.all_packed
    assert work.schedule._account.held == 0


def test_windows_are_wanted_until_enough_are_planned_and_again_when_they_are_let_go():
    work = Work(ahead_rows=2 * CHUNK)
    schedule = work.schedule
    for number in range(2):
        assert schedule.wants_window
        schedule.add(window((0, number)), 0)
    assert not schedule.wants_window
    work.work()
    assert schedule.wants_window
    schedule.end(whole=True)
    assert not schedule.wants_window


def test_a_window_is_wanted_as_long_as_no_batch_is_under_way_however_many_rows_are_planned():
    work = Work(ahead_rows=1, batch_size=2 * CHUNK)
    work.schedule.add(window((0, 0)), 0)
    assert work.schedule.wants_window
    work.schedule.add(window((0, 1)), 0)
    assert not work.schedule.wants_window


def test_a_window_that_an_earlier_run_delivered_makes_no_work():
    work = Work()
    work.schedule.add(window((0, 0)), CHUNK)
    work.schedule.end(whole=True)
    assert (work.schedule.has_job, work.schedule.all_packed, work.schedule.ended) == (False, True, True)


def test_batches_are_packed_before_more_is_decoded():
    schedule = (work := Work().plan()).schedule
    assert schedule.next_cut() is None
    work.decode(piece := schedule.next_piece())
    assert piece.span.group == 0
    assert schedule.next_cut().number == 0


def test_at_the_ceiling_only_what_the_earliest_window_needs_is_decoded():
    schedule = (work := Work(memory=1, prefetch=1).plan()).schedule
    first = schedule.next_piece()
    assert (first.span.group, first.span.start) == (0, 0)
    assert schedule.next_piece() is None
    work.decode(first)
    assert work.work() == 1, "one batch is kept ready"
    batches = work.take(1)
    while not schedule.ended:
        work.work()
        batches += work.take(1)
    assert len(batches) == 3 * ROWS // CHUNK


def test_below_the_ceiling_each_group_is_begun_at_once():
    schedule = Work().plan().schedule
    assert [schedule.next_piece().span.group for _ in range(3)] == [0, 1, 2]
    assert schedule.next_piece() is None, "a group has one reader"


def test_few_batches_are_ahead_in_page_locked_memory_those_of_the_epoch_before_among_them():
    first = Work(groups=5, page_locked=True).plan()
    second = Work(groups=5, page_locked=True, before=first).plan()
    assert first.work() == LOCKED
    first.take(LOCKED)
    assert first.work() == 15 - LOCKED
    assert second.work() == LOCKED - (15 - LOCKED)
    first.take(4)
    assert second.work() == 4
    first.schedule.closed = True
    assert second.work() == 15 - LOCKED - 4


def all_threads_open(work: Work, ready: int = 0) -> bool:
    """Whether all threads are put on the group that is opened next, with so many batches ready."""
    while len(work.schedule._finished) < ready:
        if (cut := work.schedule.next_cut()) is not None:
            work.pack(cut)
        else:
            work.decode(work.schedule.next_piece())
    opened = len(work.source.opened)
    while len(work.source.opened) == opened:
        work.decode(work.schedule.next_piece())
    return work.source.opened[-1][1]


@pytest.mark.parametrize(
    ("page_locked", "ready", "expected"), [(False, 0, True), (False, 2, True), (True, 0, True), (True, 2, False)]
)
def test_beside_a_gpu_threads_of_arrow_help_with_the_last_groups_only_where_batches_are_lacking(
    page_locked, ready, expected
):
    assert all_threads_open(Work(threads=3, page_locked=page_locked).plan(), ready) == expected


@pytest.mark.parametrize(("threads", "groups", "expected"), [(1, 1, False), (2, 3, True), (2, 4, False), (3, 4, True)])
def test_threads_of_arrow_help_where_too_few_groups_are_left_for_several_threads(threads, groups, expected):
    assert all_threads_open(Work(groups, threads=threads).plan()) == expected


def test_threads_of_arrow_help_neither_while_more_may_come_nor_beside_a_gpu_before_it_is_the_turn_of_this_epoch():
    coming = Work()
    coming.schedule.add(window((0, 0)), 0)
    assert not all_threads_open(coming)
    first = Work(page_locked=True)
    assert not all_threads_open(Work(page_locked=True, before=first).plan())
    first.schedule.closed = True
    assert all_threads_open(Work(page_locked=True, before=first).plan())


def test_two_epochs_together_stay_below_the_ceiling():
    first = Work(memory=CHUNK * 8 + 1).plan()
    second = Work(memory=CHUNK * 8 + 1, before=first).plan()
    first.schedule.next_piece()
    first.schedule.next_piece()
    assert second.schedule.next_piece().window.number == 0
    assert second.schedule.next_piece() is None
    first.schedule.clear()
    assert second.schedule.next_piece() is not None


def test_what_went_wrong_with_a_batch_is_raised_in_its_place():
    work = Work().plan()
    work.decode(work.schedule.next_piece())
    work.schedule.packed(work.schedule.next_cut(), KeyError("mine"))
    with pytest.raises(KeyError, match="mine"):
        work.schedule.take()


def test_who_is_closed_holds_nothing():
    work = Work().plan()
    work.work()
    assert work.schedule._account.held > 0
    work.schedule.clear()
    assert (work.schedule._account.held, work.schedule.has_job, len(work.schedule._groups)) == (0, False, 0)
