from __future__ import annotations

import signal
import threading

import pytest

from hybridrec.ops.unbroken import unbroken


def test_ctrl_c_comes_at_the_end_of_all_that_is_not_to_be_broken_off() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    @unbroken()
    def work() -> None:
        with unbroken():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_is_what_ctrl_c_came_after() -> None:
    @unbroken()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("no room")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, ValueError)


def test_another_thread_changes_nothing_for_the_main_one() -> None:
    found: list[object] = []

    def work() -> None:
        with unbroken():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with unbroken():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
