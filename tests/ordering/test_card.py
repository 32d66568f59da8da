"""The stand-in for a card reports what nothing but luck would keep right, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import triton
import triton.language as tl

from tests.gpu import INTERPRETED, needs_gpu
from tests.ordering.card import Card

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]


@triton.jit
def add_one(lines, count):
    """One program: to all numbers int64 of a tensor whose address is the first of the lines."""
    there = tl.load(lines).to(tl.pointer_type(tl.int64))
    for place in range(count):
        tl.store(there + place, tl.load(there + place) + 1)


@pytest.fixture
def numbers(card: Card) -> Tensor:
    return torch.arange(4, device=card.device)


@pytest.fixture
def side(card: Card):
    return torch.cuda.Stream(card.device)


def told(card: Card) -> str:
    (found,) = card.findings
    return found


def test_tensors_are_where_they_were_asked_for(card, numbers):
    assert (numbers.device, numbers.is_cuda) == (card.device, True)
    assert [each.device.type for each in (numbers + 1, numbers.cpu(), numbers[:0], numbers.new_zeros(0))] == (
        ["cuda", "cpu", "cuda", "cuda"]
    )
    assert torch.zeros(0).device.type == "cpu"


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_reads_what_another_wrote_only_when_it_has_waited(card, numbers, side, waits):
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        numbers.sum()
    assert ("card memory is read by aten.sum" in " ".join(card.findings)) == (not waits)
    numbers.record_stream(side)


def test_two_streams_may_read_beside_each_other_but_none_may_write_then(card, numbers, side):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        numbers.sum()
    numbers.sum()
    assert not card.findings
    numbers.add_(1)
    assert "card memory is written by aten.add_" in told(card)


def test_other_bytes_of_the_same_tensor_are_no_conflict(card, side):
    table = torch.zeros(4, 3, device=card.device)
    side.wait_stream(torch.cuda.current_stream())
    table[:, 1] += 1
    with torch.cuda.stream(side):
        table[:, 0].sum()
    assert not card.findings
    with torch.cuda.stream(side):
        table[2].sum()
    assert "aten.sum" in told(card)


def test_kernels_are_seen_by_the_addresses_that_they_find_in_memory(card, numbers, side):
    lines = torch.tensor([numbers.data_ptr()], device=card.device)
    numbers.add_(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        add_one[(1,)](lines, 4)
    assert not card.findings
    assert numbers.tolist() == [2, 3, 4, 5]
    assert "kernel add_one" in told(card)


def test_a_kernel_cannot_reach_ordinary_memory_of_the_host(card):
    host = torch.arange(4)
    add_one[(1,)](torch.tensor([host.data_ptr()], device=card.device), 4)
    assert any("memory that a card cannot reach is written by kernel add_one" in each for each in card.findings)


@pytest.mark.parametrize("waits", [True, False])
def test_the_host_reads_pinned_memory_only_when_it_has_waited(card, numbers, waits):
    there = torch.empty(4, dtype=torch.int64, pin_memory=True)
    there.copy_(numbers, non_blocking=True)
    moment = torch.cuda.current_stream().record_event()
    assert not moment.query()
    if waits:
        moment.synchronize()
    there.tolist()
    assert ("pinned memory is read" in " ".join(card.findings)) == (not waits)


def test_of_a_prompt_card_every_event_is_over_for_who_asks(card, numbers):
    card.prompt = True
    there = torch.empty(4, dtype=torch.int64, pin_memory=True)
    there.copy_(numbers, non_blocking=True)
    assert torch.cuda.current_stream().record_event().query()
    assert there.tolist() == [0, 1, 2, 3]
    assert not card.findings


def test_pinned_memory_that_is_on_its_way_is_not_to_be_written(card):
    host = torch.zeros(4, pin_memory=True)
    there = host.to(card.device, non_blocking=True)
    host.add_(1)
    assert "pinned memory is written by aten.add_" in told(card)
    del there


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_that_another_stream_uses_is_let_go_only_when_that_is_recorded(card, side, recorded):
    lent = torch.zeros(4, device=card.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        lent.sum()
    if recorded:
        lent.record_stream(side)
    del lent
    torch.zeros(1, device=card.device)
    assert ("memory is handed out anew" in " ".join(card.findings)) == (not recorded)


@pytest.mark.parametrize("waits", [True, False])
def test_memory_is_kept_by_a_recorded_stream_for_those_that_it_has_waited_for(card, side, waits):
    lent, third = torch.zeros(4, device=card.device), torch.cuda.Stream(card.device)
    for stream in (side, third):
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(third):
        lent.sum()
    if waits:
        side.wait_stream(third)
    lent.record_stream(side)
    del lent
    torch.zeros(1, device=card.device)
    assert ("memory is handed out anew" in " ".join(card.findings)) == (not waits)


def test_a_stream_that_has_waited_may_have_the_memory(card, side):
    lent = torch.zeros(4, device=card.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        lent.sum()
    del lent
    torch.cuda.current_stream().wait_stream(side)
    torch.zeros(1, device=card.device)
    assert not card.findings


def test_backward_passes_are_seen(card, side):
    weight = torch.ones(4, device=card.device, requires_grad=True)
    loss = (weight * weight).sum()
    with torch.cuda.stream(side):
        loss.backward()
    assert any("Backward" in each or "aten.mul" in each for each in card.findings)


def test_a_replay_is_work_of_the_stream_that_it_is_on(card, numbers, side):
    replay = card.captured(lambda: (numbers.sum(), None)[1])
    replay()
    assert not card.findings
    with torch.cuda.stream(side):
        replay()
    assert not card.findings, "the capture has waited for all that was launched before"
    numbers.add_(1)
    assert "aten.sum" in told(card)


def test_memory_of_a_graph_is_the_same_at_each_replay(card, numbers, side):
    made = []
    replay = card.captured(lambda: made.append(numbers + 1))
    replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        made[-1].sum()
    replay()
    assert any("is written" in each and "aten.sum" in each for each in card.findings)


@pytest.mark.parametrize("joins", [True, False])
def test_streams_of_a_capture_are_one_again_at_its_end(card, numbers, side, joins):
    def work() -> None:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            numbers.sum()
        if joins:
            here.wait_stream(side)

    card.captured(work)()
    assert ("a capture ends without" in " ".join(card.findings)) == (not joins)


def test_a_capture_waits_for_nothing_outside_of_it(card, numbers):
    outside = torch.cuda.current_stream().record_event()
    card.captured(lambda: torch.cuda.current_stream().wait_event(outside))
    assert "not of the same capture" in told(card)


def test_a_capture_does_not_wait_for_the_device(card, numbers):
    card.captured(lambda: (numbers.tolist(), None)[1])()
    assert "a capture waits for the device" in told(card)
