"""Seats: no more are taken than there are, and whoever is leaving gets none."""

from __future__ import annotations

import threading

from hybridrec.train.seats import Seats
from tests.patience import PATIENCE


def test_a_seat_that_is_not_there_is_waited_for_until_somebody_frees_one():
    seats, staying, taken = Seats(1), threading.Event(), threading.Event()
    assert seats.take(staying)
    waiting = threading.Thread(target=lambda: seats.take(staying) and taken.set())
    waiting.start()
    assert not taken.is_set()  # there is none, whatever the thread has come to
    seats.free()
    waiting.join(PATIENCE)
    assert taken.is_set()


def test_who_is_leaving_takes_no_seat_though_one_is_free():
    seats, leaving = Seats(1), threading.Event()
    leaving.set()
    assert not seats.take(leaving)
    assert seats.take(threading.Event())


def test_who_waits_and_is_told_to_leave_leaves_the_seat_to_others():
    seats, leaving, staying = Seats(1), threading.Event(), threading.Event()
    assert seats.take(staying)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(seats.take(leaving)))
    waiting.start()
    leaving.set()
    seats.wake()
    waiting.join(PATIENCE)
    assert found == [False]
    seats.free()
    assert seats.take(staying)


def test_many_threads_never_hold_more_seats_than_there_are():
    seats, staying, lock = Seats(3), threading.Event(), threading.Lock()
    held, most = 0, 0

    def sit_and_leave() -> None:
        nonlocal held, most
        for _ in range(200):
            assert seats.take(staying)
            with lock:
                held += 1
                most = max(most, held)
            with lock:
                held -= 1
            seats.free()

    threads = [threading.Thread(target=sit_and_leave) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert most <= 3
    assert seats._left == 3
