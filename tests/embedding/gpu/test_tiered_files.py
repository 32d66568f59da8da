"""Tables with cold rows in files: to the last bit those of tables which are all on the device."""

from __future__ import annotations

import copy
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu import tier_class
from hybridrec.embedding.gpu.cold_file import ColdFile
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tier_class import classes_of
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import Store
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.embedding.gpu.test_cold_file import file_in
from tests.embedding.gpu.test_tiered_training import Both, pairs
from tests.gpu import DEVICE, needs_gpu
from tests.ops.row_cache.caches import SMALL

pytestmark = needs_gpu

RULE = RowRule("adagrad", (StateColumn("sum", fill=0.5),))
MOMENTUM = RowRule("momentum", (StateColumn("momentum"),))


def tables(path: Path, **options) -> list[hr.Table]:
    """Two tables of one dimension, which share a cache."""
    return [hr.Table(name, dim=8, rows=rows, cache=20, path=path, **options) for name, rows in (("a", 60), ("c", 50))]


def made(path: Path, share: Share = Share(), slots: int = 4) -> TieredStore:  # noqa: B008
    store = TieredStore(hr.Table("item", dim=6, rows=20, cache=4, path=path), 7, DEVICE, slots, share, SMALL)
    store.attach(RULE)
    return store


def train(store: Store, *ids: int, step: int = 1) -> None:
    torch.manual_seed(step)
    grads, by = torch.randn(len(ids), 6), RowStep(rule=RULE, lr=0.1, step=step)
    store.update(store.prepare(torch.tensor(ids), train=True), grads, by)


def move(store: TieredStore, *ids: int) -> None:
    """Have some rows on the device."""
    store.admit(torch.tensor(ids, device=DEVICE))
    store.tier.land()


def same(one: Store, other: Store) -> None:
    found, expected = one.snapshot(), other.snapshot()
    assert (found.clock, found.rule) == (expected.clock, expected.rule)
    assert torch.equal(found.data.ids, expected.data.ids)
    assert torch.equal(found.data.rows, expected.data.rows)
    assert torch.equal(found.data.state["sum"], expected.data.state["sum"])


@pytest.mark.parametrize(
    ("ahead", "dtype"), [(True, torch.float32), (False, torch.bfloat16)], ids=["one ahead", "in turn"]
)
def test_steps_are_those_of_tables_on_the_device_bit_for_bit(tmp_path, ahead: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = Both("adam", tables(tmp_path, dtype=dtype))
    blocks = [pairs(7).to(DEVICE) for _ in range(4)]
    for each in blocks if ahead else ():
        both.lookup.fetch(each)
    for number, each in enumerate(blocks):
        both.backward(each)
        both.step()
        if number == 2:
            shutil.rmtree(tmp_path)  # the files have no names there
    both.agree()
    figures = both.stores[0].tier.figures()
    assert figures.moved > 20
    assert figures.refused == 0


def test_rows_that_leave_arrive_though_ctrl_c_comes_when_others_were_sent_for(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, like = made(tmp_path), made(tmp_path)
    train(store, 0, 1, 2)  # so that rows that leave are not what they were
    train(like, 0, 1, 2)
    lane = store.tier._lane
    send = lane.do

    def interrupted(work: Callable[[], Any]) -> Future:
        sent = send(work)
        monkeypatch.setattr(lane, "do", send)
        signal.raise_signal(signal.SIGINT)
        return sent

    monkeypatch.setattr(lane, "do", interrupted)
    with pytest.raises(KeyboardInterrupt):
        move(store, 10, 11, 12)
    same(store, like)


class Late:
    """A thread that comes to nothing before somebody waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._todo: deque[tuple[Callable[[], Any], Future]] = deque()

    def do(self, work: Callable[[], Any]) -> Future:
        made = Awaited(self._next)
        self._todo.append((work, made))
        return made

    def wait(self) -> None:
        while self._todo:
            self._next()

    def _next(self) -> None:
        work, made = self._todo.popleft()
        try:
            made.set_result(work())
        except Exception as error:
            made.set_exception(error)


class Awaited(Future):
    """What has others done until it is there."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        super().__init__()
        self._go_on = go_on

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._go_on()
        return super().result(timeout)


def test_a_thread_that_is_late_changes_nothing(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_class, "Lane", Late)
    torch.manual_seed(1)
    both = Both("sgd", tables(tmp_path))
    blocks = [pairs(12).to(DEVICE) for _ in range(5)]  # there are slots for the rows of two, not of three
    for each in blocks:
        both.lookup.fetch(each)
    for each in blocks[::2]:  # those between are admitted ahead, and let go
        both.backward(each)
        both.step()
    both.agree()
    figures = both.stores[0].tier.figures()
    assert figures.admissions == 5
    assert figures.refused == 0
    assert figures.moved > 20


def test_rows_that_leave_in_a_step_are_wanted_again_by_the_next(tmp_path) -> None:
    files, hot = made(tmp_path), DeviceStore(hr.Table("item", dim=6, rows=20), 7, DEVICE)
    hot.attach(RULE)
    for step in range(1, 9):
        ids = (0, 1, 2, 3) if step % 2 else (16, 17, 18, 19)
        for store in (files, hot):
            train(store, *ids, step=step)
    same(files, hot)


def test_packed_rows_are_kept_in_files_too(tmp_path) -> None:
    table = hr.Table("item", dim=6, rows=20, cache=4, cold=torch.int8, path=tmp_path)
    files = TieredStore(table, 7, DEVICE, 4, sizes=SMALL)
    rows = torch.arange(-6, 114).view(20, 6) / 8
    files.load(torch.arange(20), rows)
    for _ in range(3):
        move(files, *torch.randperm(20)[:4].tolist())
    off = (files.snapshot().data.rows - rows).abs().amax(1)
    assert bool((off <= 2 * rows.abs().amax(1) / 127).all())
    assert files.cache.columns[0].cold.dtype == torch.int8


@pytest.mark.parametrize("share", [Share(), Share(index=1, count=2)], ids=["whole", "share"])
def test_checkpoints_go_to_and_from_every_other_store(tmp_path, share: Share) -> None:
    table = hr.Table("item", dim=6, rows=20)
    others = [
        DenseStore(table, 7, share),
        DeviceStore(table, 7, DEVICE, share),
        TieredStore(replace(table, cache=4), 7, DEVICE, 4, share, SMALL),
        made(tmp_path / "other", share),
    ]
    files = made(tmp_path / "rows", share)
    train(files, *files.share.id_of(torch.arange(len(files)))[2::3].tolist())
    move(files, 9, 1)
    for other in others:
        other.attach(RULE)
        other.restore(files.snapshot())
        same(other, files)
        train(other, *other.share.id_of(torch.arange(len(files)))[3::2].tolist(), step=2)
        files.restore(other.snapshot())
        same(files, other)


def test_a_capture_has_the_rows_of_its_moment_whatever_comes_then(tmp_path) -> None:
    files = made(tmp_path)
    train(files, 3, 9, 19)
    expected = files.snapshot().data
    with files.capture() as held:
        chunks = held.chunks(7)
        found = [next(chunks)]
        train(files, 19, 18, 0, step=2)
        found += chunks
    assert torch.equal(torch.cat([part.rows for part in found]), expected.rows)
    assert torch.equal(torch.cat([part.state["sum"] for part in found]), expected.state["sum"])


def test_copies_have_files_of_their_own(tmp_path) -> None:
    files = made(tmp_path)
    train(files, 3, 9, 19)
    again = copy.deepcopy(files)
    same(again, files)
    train(again, 19, 12, step=2)
    assert not torch.equal(again.snapshot().data.rows, files.snapshot().data.rows)


def test_another_optimizer_has_state_of_its_own_in_files(tmp_path) -> None:
    files = made(tmp_path)
    train(files, 3, 9, 19)
    rows = files.snapshot().data.rows
    files.attach(MOMENTUM)
    move(files, 12, 3)
    assert torch.equal(files.snapshot().data.rows, rows)
    assert not files.snapshot().data.state["momentum"].any()
    assert all(isinstance(held.cold, ColdFile) for held in files.tier._held)


def test_tables_share_a_cache_where_their_files_are_in_one_directory(tmp_path) -> None:
    a, b = tables(tmp_path / "one")
    stores = [TieredStore(t, 7, DEVICE, 20) for t in (a, b, replace(a, path=tmp_path / "two"), replace(a, path=None))]
    assert classes_of(stores) == [stores[:2], stores[2:3], stores[3:]]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to cut a file that has no name")
def test_a_file_that_was_cut_is_an_error_for_lookups_and_checkpoints_and_moves_no_row(tmp_path) -> None:
    both = Both("sgd", tables(tmp_path))
    both.backward(pairs(6))
    both.step()
    directory = both.stores[0].cache.directory.clone()
    os.ftruncate(file_in(tmp_path), 64)
    for ask in (lambda: both.tiered(pairs(7)), both.stores[0].snapshot):
        with pytest.raises(OSError, match=r"cold rows of table 'a, c' in .* 64 bytes of .* go on from a checkpoint"):
            ask()
    assert torch.equal(both.stores[0].cache.directory, directory)


def test_a_directory_that_cannot_be_made_is_an_error_before_there_are_rows(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    store = TieredStore(hr.Table("item", dim=6, rows=20, cache=4, path=tmp_path / "file"), 7, DEVICE, 4)
    with pytest.raises(OSError, match=r"cold rows of table 'item' need 384 bytes of disk in .*file"):
        _ = store.tier
    assert store.fresh
