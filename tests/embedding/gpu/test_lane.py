"""What the host does beside others: in its order, and errors are for who wants to know."""

from __future__ import annotations

import threading

import pytest
import torch

from hybridrec.embedding.gpu.lane import Lane
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu


def test_things_are_done_in_their_order() -> None:
    lane, done = Lane(DEVICE), []
    for number in range(20):
        lane.do(lambda number=number: done.append(number))
    lane.wait()
    assert done == list(range(20))


def test_an_error_is_raised_for_who_asked_and_the_next_thing_is_done() -> None:
    def fail() -> None:
        raise OSError("gone")

    lane = Lane(DEVICE)
    lost, found = lane.do(fail), lane.do(lambda: 3)
    lane.wait()
    assert found.result() == 3
    with pytest.raises(OSError, match="gone"):
        lost.result()
    lane.do(fail)
    with pytest.raises(OSError, match="gone"):
        lane.wait()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="for the CPU there is no thread")
def test_a_thread_works_on_the_stream_of_who_asked() -> None:
    lane, side = Lane(DEVICE), torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(side):
        found = lane.do(lambda: (torch.cuda.current_stream(DEVICE), threading.current_thread()))
    stream, thread = found.result()
    assert stream == side
    assert thread is not threading.current_thread()
