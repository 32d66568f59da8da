"""Batches in memory that a GPU copies from."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

import hybridrec as hr
from hybridrec import _native
from hybridrec.data import decode
from hybridrec.data import page_locked as memory
from hybridrec.data.effort import NICE
from hybridrec.data.loader import Loader
from hybridrec.data.page_locked import page_locked
from hybridrec.data.schedule import LOCKED
from tests.patience import wait_for

DEVICE = torch.device("cuda", 0)


class Locked:
    """Stands in for torch's allocator, and keeps a list of what is locked."""

    def __init__(self) -> None:
        self.enough = True
        self.addresses: set[int] = set()

    def __call__(self, size: int) -> torch.Tensor:
        if not self.enough:
            raise RuntimeError("CUDA error: out of memory\nand more")
        made = np.empty(size, np.uint8)
        self.addresses.add(made.ctypes.data)
        weakref.finalize(made, self.addresses.remove, made.ctypes.data)
        return torch.from_numpy(made)


@pytest.fixture
def locked(monkeypatch) -> Locked:
    made = Locked()
    monkeypatch.setattr(memory, "_locked", made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return made


def test_memory_is_locked_as_long_as_it_is_there(locked):
    block = page_locked(DEVICE, 1 << 16)
    block[:] = 7
    assert locked.addresses == {block.ctypes.data}
    view = block[100:]
    del block
    gc.collect()
    assert len(locked.addresses) == 1
    del view
    gc.collect()
    assert locked.addresses == set()


def test_where_no_more_can_be_locked_memory_is_ordinary_and_a_warning_says_so(locked, caplog):
    locked.enough = False
    with caplog.at_level(logging.WARNING, logger="hybridrec.data"):
        block = page_locked(DEVICE, 4096)
    block[:] = 1
    assert "4096 bytes could not be page-locked (CUDA error: out of memory);" in caplog.text


def test_batches_for_a_gpu_lie_in_locked_memory_that_later_ones_use_again(locked):
    ds = hr.data.table({"user": range(64_000)}, batch_size=1000, threads=1, prefetch=1, memory=1)
    seen, number = [], 0
    for number, batch in enumerate(ds.pinned(DEVICE)):
        assert batch.ids["user"].values.tolist() == list(range(1000 * number, 1000 * number + 1000))
        assert batch.arena.data_ptr() in locked.addresses
        seen.append(batch.arena.data_ptr())
        del batch
    assert number == 63
    assert len(set(seen)) < 32
    assert [len(batch) for batch in ds] == [1000] * 64  # the next epoch, in ordinary memory
    del ds
    gc.collect()
    assert locked.addresses == set()


def test_an_epoch_read_ahead_is_in_locked_memory_too(locked):
    ds = hr.data.table({"user": range(3000)}, batch_size=1000)
    running = ds.pinned(DEVICE)
    next(running)
    ds.read_ahead()
    ahead = ds._cursor.ahead.batches
    list(running)
    again = ds.pinned(DEVICE)
    assert again is ahead
    assert all(batch.arena.data_ptr() in locked.addresses for batch in again)
    del again, ahead, running


def test_few_batches_are_ahead_in_locked_memory_those_of_the_next_epoch_among_them(locked):
    """To lock memory takes as long as several steps of a GPU, so it is not to happen again and again."""
    ds = hr.data.table({"user": range(64_000)}, batch_size=1000, threads=2)
    running = ds.pinned(DEVICE)
    next(running)
    schedule = running.loader._schedule
    assert wait_for(lambda: len(schedule._finished) == LOCKED)
    for _ in range(50):
        next(running)
    ds.read_ahead()
    ahead = ds._cursor.ahead.batches.loader
    assert wait_for(lambda: len(schedule._finished) == LOCKED)
    assert wait_for(lambda: not ahead.unbegun and ahead._schedule._cutter.first is not None)
    assert not ahead._schedule._finished
    for _ in range(10):
        next(running)
    assert wait_for(lambda: (len(schedule._finished), len(ahead._schedule._finished)) == (3, LOCKED - 3))
    assert sum(len(batch) for batch in running) == 3000
    assert sum(len(batch) for batch in ds.pinned(DEVICE)) == 64_000
    assert len(locked.addresses) <= LOCKED + 2, "and the one in hand, and the next that is waited for"


def test_an_epoch_read_ahead_comes_though_the_one_before_is_neither_read_on_nor_closed(locked):
    ds = hr.data.table({"user": range(64_000)}, batch_size=1000, threads=2)
    running = ds.pinned(DEVICE)
    next(running)
    ds.read_ahead()
    other = ds.pinned(DEVICE)
    taken = []
    threading.Thread(target=lambda: taken.extend(len(batch) for batch in other), daemon=True).start()
    assert wait_for(lambda: sum(taken) == 64_000)
    running.close()


def test_an_error_of_making_memory_comes_with_the_batch(monkeypatch):
    def refuse(device: torch.device, size: int) -> np.ndarray:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(decode, "page_locked", refuse)
    with pytest.raises(MemoryError, match="no memory is left"):
        next(hr.data.table({"user": [1]}, batch_size=1).pinned(DEVICE))


def test_a_block_that_is_too_small_is_refused():
    arena = _native.Arena.create(lambda size: np.empty(size - 1, np.uint8))
    with pytest.raises(ValueError, match="smaller than it was asked to be"):
        arena.take(100)


@pytest.mark.parametrize(("cores", "asked", "used"), [(16, None, 14), (2, None, 1), (1, None, 1), (16, 5, 5)])
def test_two_cores_are_left_to_the_threads_that_drive_a_gpu(locked, monkeypatch, cores, asked, used):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    ds = hr.data.table({"user": range(10)}, batch_size=10, threads=asked)
    running = ds.pinned(DEVICE)
    assert len(running.loader._threads) == used
    running.close()
    running = iter(ds)
    assert len(running.loader._threads) == (asked or cores)
    running.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_threads_that_decode_for_a_gpu_have_a_low_priority_and_no_others(locked, monkeypatch):
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    pack, found, usual = Loader._pack, [], priority()
    monkeypatch.setattr(Loader, "_pack", lambda self, cut: (found.append(priority()), pack(self, cut)))
    ds = hr.data.table({"user": [1]}, batch_size=1)
    list(ds.pinned(DEVICE))
    list(ds)
    assert found == [max(usual, NICE), usual]
    assert priority() == usual


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory is for a GPU")
def test_a_gpu_copies_from_the_batches_themselves():
    ds = hr.data.table({"user": range(5000), "price": [0.5] * 5000}, batch_size=1000)
    for number, batch in enumerate(ds.pinned(DEVICE)):
        assert batch.arena.is_pinned()
        assert batch.pin_memory().arena.data_ptr() == batch.arena.data_ptr()
        there = batch.to(DEVICE, non_blocking=True)
        torch.cuda.synchronize()
        assert there.ids["user"].values.tolist() == list(range(1000 * number, 1000 * number + 1000))
