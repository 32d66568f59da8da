"""Whether the process of a rank has ended, as others on its host see it."""

from __future__ import annotations

import os
import subprocess
import sys

from hybridrec.parallel.process import Process

WHO = "from hybridrec.parallel.process import Process; print(*Process.here(), sep='|', flush=True); input()"


def test_a_process_has_ended_when_it_has_not_when_somebody_asked_for_its_exit_code() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        counted, number, began = other.stdout.readline().rstrip("\n").split("|")
        process = Process(counted, int(number), began)
        assert process.number == other.pid
        assert process.ended() is False
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it stays as it is
        assert process.ended() is True
    assert process.ended() is True


def test_another_process_that_got_the_number_is_not_the_same() -> None:
    assert Process.here()._replace(began="long ago").ended() is True


def test_what_is_counted_elsewhere_cannot_be_seen() -> None:
    assert Process.here()._replace(counted="another host").ended() is None
