"""What is asked of the CUDA driver for memory that grows: a driver of Python stands for it, and keeps its rules."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.ops import reserved_cuda
from hybridrec.ops.reserved_cuda import CardPages, pieces, rounded

UNIT, BASE = 2 << 20, 7 << 40
CARD = torch.device("cuda", 0)


class Driver:
    """Memory of a card with so many units that are free, of which torch holds some for later."""

    def __init__(self, free: int, held: int = 0) -> None:
        self.free, self.held = free * UNIT, held * UNIT
        self.made: dict[int, int] = {}  # sizes by handle
        self.mapped: dict[int, int] = {}  # sizes by offset
        self.open: set[int] = set()
        self.reserved = 0

    def cuMemGetAllocationGranularity(self, found: Any, properties: Any, option: Any) -> int:
        found._obj.value = UNIT
        return 0

    def cuMemAddressReserve(self, found: Any, size: Any, alignment: Any, address: Any, flags: Any) -> int:
        assert alignment.value & (alignment.value - 1) == 0
        found._obj.value, self.reserved = BASE, size.value
        return 0

    def cuMemCreate(self, handle: Any, size: Any, properties: Any, flags: Any) -> int:
        if size.value > self.free:
            return reserved_cuda.LACKING
        self.free -= size.value
        handle._obj.value = len(self.made) + 1
        self.made[handle._obj.value] = size.value
        return 0

    def cuMemMap(self, address: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        assert self.made[handle.value] == size.value
        assert address.value + size.value <= BASE + self.reserved
        assert all(address.value - BASE >= at + of for at, of in self.mapped.items())
        self.mapped[address.value - BASE] = size.value
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        return 0

    def cuMemSetAccess(self, address: Any, size: Any, access: Any, count: Any) -> int:
        self.open.add(address.value - BASE)
        return 0

    def cuMemUnmap(self, address: Any, size: Any) -> int:
        first, last = address.value - BASE, address.value - BASE + size.value
        gone = {at: of for at, of in self.mapped.items() if first <= at < last}
        assert sum(gone.values()) == size.value, "whole pieces, and no gap"
        self.free += size.value
        self.mapped = {at: of for at, of in self.mapped.items() if at not in gone}
        return 0

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert not self.mapped
        assert size.value == self.reserved
        self.reserved = 0
        return 0

    def cuGetErrorString(self, code: Any, told: Any) -> int:
        told._obj.value = b"out of memory"
        return 0

    def give_back(self) -> None:
        self.free, self.held = self.free + self.held, 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(free=100)
    gc.collect()  # what others have left goes back to a real one
    reserved_cuda.unit_of.cache_clear()
    monkeypatch.setattr(reserved_cuda, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for name in ("mem_get_info", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", made.give_back)
    return made


def test_pieces_lie_behind_each_other_at_multiples_of_their_size(driver: Driver) -> None:
    pages = CardPages(90 * UNIT, CARD)
    for units in (1, 3, 3, 12, 40, 85):
        pages.grow(units * UNIT - 5)
        assert pages.extent >= units * UNIT
        assert pages.extent == sum(driver.mapped.values())
    assert all(at % size == 0 for at, size in driver.mapped.items())
    assert driver.open == set(driver.mapped)
    assert pages.extent == 88 * UNIT  # a step of four


def test_all_is_given_back_when_it_goes(driver: Driver) -> None:
    pages = CardPages(90 * UNIT, CARD)
    pages.grow(70 * UNIT)
    del pages
    gc.collect()
    assert (driver.mapped, driver.reserved, driver.free) == ({}, 0, 100 * UNIT)


def test_what_goes_while_a_graph_is_captured_is_given_back_later(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = CardPages(90 * UNIT, CARD)
    pages.grow(70 * UNIT)
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        capture.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the capture would be worth nothing"))
        del pages
        gc.collect()
        assert driver.reserved == 90 * UNIT
    CardPages(UNIT, CARD)
    gc.collect()
    assert (driver.mapped, driver.reserved, driver.free) == ({}, 0, 100 * UNIT)


def test_where_a_round_size_does_not_fit_the_exact_one_may(driver: Driver) -> None:
    driver.free = 33 * UNIT
    pages = CardPages(90 * UNIT, CARD)
    pages.grow(33 * UNIT)  # 34 would be round
    assert (pages.extent, driver.free) == (33 * UNIT, 0)


def test_memory_that_torch_holds_for_later_is_asked_for(driver: Driver) -> None:
    driver.free, driver.held = 4 * UNIT, 60 * UNIT
    pages = CardPages(90 * UNIT, CARD)
    pages.grow(32 * UNIT)
    assert (pages.extent, driver.free) == (32 * UNIT, 32 * UNIT)


def test_too_little_memory_is_told_and_changes_nothing(driver: Driver) -> None:
    pages = CardPages(900 * UNIT, CARD)
    pages.grow(3 * UNIT)
    free = driver.free
    with pytest.raises(torch.OutOfMemoryError, match="cuMemCreate: CUDA error 2, out of memory"):
        pages.grow(200 * UNIT)
    assert (pages.extent, driver.free) == (3 * UNIT, free)
    pages.grow(64 * UNIT)
    pages.shrink(3 * UNIT)
    assert (pages.extent, driver.free) == (3 * UNIT, free)


def test_a_piece_that_cannot_be_opened_is_no_memory(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = CardPages(90 * UNIT, CARD)
    monkeypatch.setattr(driver, "cuMemSetAccess", lambda *_: 999)
    with pytest.raises(RuntimeError, match="cuMemSetAccess: CUDA error 999"):
        pages.grow(UNIT)
    assert (pages.extent, driver.mapped) == (0, {})


@given(first=st.integers(0, 2000), more=st.integers(0, 2000))
def test_pieces_reach_from_one_place_to_the_other(first: int, more: int) -> None:
    at = first
    for size in pieces(first, first + more):
        assert size & (size - 1) == 0
        assert at % size == 0
        at += size
    assert at == first + more


@given(units=st.integers(1, 10**6))
def test_at_most_an_eighth_is_there_in_vain(units: int) -> None:
    size = rounded(units * UNIT, UNIT)
    assert units * UNIT <= size <= max(units + 1, units * 1.125) * UNIT
