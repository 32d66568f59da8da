from __future__ import annotations

import os
import sys
import threading

import pytest

from hybridrec.data.effort import NICE, Effort, give_way


@pytest.mark.parametrize("name", ["threads", "prefetch", "memory"])
@pytest.mark.parametrize("value", [0, -1, 2.0, None])
def test_less_than_one_or_a_fraction_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}: at least 1, a whole number"):
        Effort(**({"threads": 1, "prefetch": 1, "memory": 1} | {name: value}))


@pytest.mark.parametrize(("cores", "threads", "left"), [(16, 16, 14), (3, 3, 1), (2, 2, 1), (1, 1, 1), (16, 5, 5)])
def test_beside_a_gpu_all_cores_become_all_but_two_and_a_stated_number_stays(monkeypatch, cores, threads, left):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    effort = Effort(threads, prefetch=3, memory=7, on_bad_file="skip")
    assert effort.beside_a_gpu() == Effort(left, prefetch=3, memory=7, on_bad_file="skip")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_a_thread_gives_way_alone_and_never_comes_forward():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work() -> None:
        give_way()
        found.append(priority())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        give_way()
        found.append(priority())

    found: list[int] = []
    usual, thread = priority(), threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [max(usual, NICE), 19]
    assert priority() == usual
