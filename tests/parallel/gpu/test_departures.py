"""Flights leave in the order in which they have begun, which is that of all ranks, and each of them once."""

from __future__ import annotations

from concurrent.futures import Future

from hybridrec.parallel.gpu.departures import Departures


class Flight:
    """Notes when it leaves."""

    def __init__(self, name: str, left: list[str]) -> None:
        self._name, self._left = name, left

    def depart(self) -> None:
        if self._name not in self._left:
            self._left.append(self._name)


def begun(departures: Departures, left: list[str], *names: str) -> list[Flight]:
    flights = [Flight(name, left) for name in names]
    for each in flights:
        known: Future[Flight] = Future()
        known.set_result(each)
        departures.add(known)
    return flights


def test_all_that_have_begun_leave_and_one_that_failed_holds_nobody_up():
    departures, left = Departures(), []
    failed: Future[Flight] = Future()
    failed.set_exception(ValueError("an id that no table has"))
    flights = begun(departures, left, "a")
    departures.add(failed)
    flights += begun(departures, left, "b")
    assert departures.all() == flights
    assert left == ["a", "b"]
    assert departures.all() == []


def test_a_lookup_waits_for_no_flight_that_began_after_its_own():
    departures, left = Departures(), []
    _, second = begun(departures, left, "a", "b")
    departures.add(Future())  # whose sizes are not known yet
    departures.until(second)
    assert left == ["a", "b"]


def test_a_flight_that_nobody_has_begun_leaves_alone():
    departures, left = Departures(), []
    departures.add(Future())
    departures.until(Flight("now", left))
    assert left == ["now"]
