"""Captures of tables on a device: one moment, whoever changes the rows meanwhile."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu import capture as captures
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SIZES, OnDevice
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

RULE = RowRule("adagrad", (StateColumn("sum", fill=0.5),))
CHANGES = {
    "load": lambda store: store.load(torch.tensor([0, 19]), torch.ones(2, 6)),
    "erase": lambda store: store.erase(torch.tensor([0, 19])),
    "clear": lambda store: store.clear(),
    "weight": lambda store: store.weight.zero_(),
    "state": lambda store: store.state("sum").zero_(),
    "detach": lambda store: store.detach(),
    "attach": lambda store: store.attach(RULE),
    "restore": lambda store: store.restore(DeviceStore(store.table, 8, DEVICE).snapshot()),
}


def made() -> DeviceStore:
    store = DeviceStore(hr.Table("item", dim=6, rows=20), 7, DEVICE)
    store.attach(RULE)
    store.load(torch.arange(20), torch.randn(20, 6), {"sum": torch.rand(20, 6)})
    return store


def copied(monkeypatch) -> list[int]:
    """The rows of each copy to the host from now on."""
    counts, real = [], captures.to_host
    monkeypatch.setattr(captures, "to_host", lambda values, after=None: counts.append(len(values)) or real(values))
    return counts


@pytest.mark.parametrize("read", [0, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_the_table_as_it_was(change, read):
    store = made()
    then = store.snapshot().data
    with store.capture() as now:
        chunks = now.chunks(3)
        parts = [next(chunks) for _ in range(read)]
        CHANGES[change](store)
        parts += chunks
    assert torch.equal(torch.cat([part.ids for part in parts]), then.ids)
    assert torch.equal(torch.cat([part.rows for part in parts]), then.rows)
    assert torch.equal(torch.cat([part.state["sum"] for part in parts]), then.state["sum"])


def test_a_step_comes_after_what_was_not_read(monkeypatch):
    gpu = OnDevice(hr.EmbeddingCollection([hr.Table("a", dim=4, rows=10), hr.Table("b", dim=4, rows=10)]), SIZES[0])
    rows = hr.optim.Adagrad(gpu, lr=0.1)
    then = gpu.stores["a"].snapshot()
    held = {name: store.capture() for name, store in gpu.stores.items()}
    counts = copied(monkeypatch)
    for _ in range(2):
        flat, _ = gpu(IdBlock.from_lists({"a": [1, 2], "b": [3, 3]}))
        assert not counts or len(counts) == 4
        flat.sum().backward()
        rows.step()
    assert counts == [10] * 4  # rows and state of two tables, once
    [part] = held["a"].chunks()
    assert torch.equal(part.rows, then.data.rows)
    assert not torch.equal(gpu.stores["a"].weight.cpu(), then.data.rows)


def test_nothing_is_copied_at_the_moment_nor_where_nothing_changes(monkeypatch):
    store, counts = made(), copied(monkeypatch)
    held = store.capture()
    assert (held.host_bytes, counts) == (2 * 20 * 6 * 4, [])
    chunks = held.chunks(15)
    next(chunks)
    assert (held.host_bytes, counts) == (2 * 5 * 6 * 4, [15, 15])
    store.lookup(torch.tensor([3]))
    store.read(torch.tensor([3]))
    next(chunks)
    store.clear()
    assert counts == [15, 15, 5, 5, 0, 0]


def test_what_is_closed_or_dropped_costs_nothing(monkeypatch):
    store = made()
    store.capture().close()
    store.capture()
    gc.collect()
    counts = copied(monkeypatch)
    store.clear()
    assert counts == []


def test_a_reader_in_another_thread_sees_the_moment():
    store = DeviceStore(hr.Table("item", dim=6, rows=5000), 7, DEVICE)
    then, found, begun = store.snapshot().data.rows, [], threading.Event()

    def read() -> None:
        for part in held.chunks(7):
            found.append(part.rows)
            begun.set()

    with store.capture() as held:
        thread = threading.Thread(target=read)
        thread.start()
        begun.wait()
        store.weight.zero_()
        thread.join()
    assert torch.equal(torch.cat(found), then)


def test_a_store_takes_the_capture_of_another():
    store, other = made(), DeviceStore(hr.Table("item", dim=6, rows=20), 9, DEVICE)
    with store.capture() as now:
        other.restore(now)
    assert torch.equal(other.weight, store.weight)
    assert torch.equal(other.state("sum"), store.state("sum"))
