"""Signals during a fit."""

from __future__ import annotations

import signal
import threading

import pytest

from hybridrec.train.interruption import Interruption


def test_the_first_signal_is_noted_and_the_second_acts():
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert interruption.number is None
        signal.raise_signal(signal.SIGINT)
        assert interruption.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_it_ends_as_the_signal_would_have():
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        interruption.reraise("saved")
    assert ended.value.code == 143


def test_other_threads_are_left_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interruption():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
