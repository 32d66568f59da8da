"""What a device tells is known late, in order, and without waiting; events are stood in for."""

from __future__ import annotations

import pytest
import torch

from hybridrec.embedding.gpu.news import News, Told
from tests.embedding.gpu.late import Device


@pytest.fixture
def device() -> Device:
    return Device()


def asked(device: Device, times: int) -> News[int]:
    """News of a tensor that is 0 at first, then 10 when asked for the first time, 20, and so on."""
    standing = torch.zeros(1, dtype=torch.int64)
    news = News(standing, 0, device.record)
    for number in range(1, times + 1):
        standing += 10
        news.ask(number)
    return news


def test_what_is_under_way_is_not_waited_for(device):
    news = asked(device, 3)
    assert (news.latest, device.waited) == (Told([0], 0), [])


def test_the_newest_that_has_come_is_the_latest_with_what_was_known_when_it_was_asked(device):
    news = asked(device, 3)
    device.done = 2
    assert news.latest == Told([20], 2)
    device.done = 3
    assert news.latest == Told([30], 3)


def test_whoever_catches_up_leaves_the_device_with_what_was_asked_last(device):
    news = asked(device, 4)
    assert (news.catch_up(), device.waited) == (Told([30], 3), [3])


@pytest.mark.parametrize("times", [0, 1])
def test_where_nothing_earlier_is_under_way_catching_up_waits_for_nothing(device, times):
    news = asked(device, times)
    assert (news.catch_up(), device.waited) == (Told([0], 0), [])


def test_asking_again_with_nothing_new_asks_the_device_once(device):
    news = asked(device, 2)
    news.ask(2)
    assert device.launched == 2
    assert news.catch_up().known == 1  # else it would wait for all that was launched


def test_memory_is_used_again_only_when_it_has_been_read(device):
    standing = torch.zeros(1, dtype=torch.int64)
    news = News(standing, 0, device.record)
    with torch.inference_mode():
        news.ask(1)
    device.done = 1
    for number in (2, 3):
        standing += 1
        news.ask(number)
    device.done = 2
    assert news.latest == Told([1], 2)
    device.done = 3
    assert news.latest == Told([2], 3)
