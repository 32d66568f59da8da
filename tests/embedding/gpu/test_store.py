from __future__ import annotations

import copy
import pickle

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Constant, Normal, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu import memory, transfer
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.embedding.gpu.on_device import SIZES, OnDevice
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

RULE = RowRule("adagrad", (StateColumn("sum", fill=0.5),))


def made(init=None) -> tuple[DenseStore, DeviceStore]:
    table = hr.Table("item", dim=6, rows=20, init=init or Uniform(0.1))
    stores = DenseStore(table, 7), DeviceStore(table, 7, DEVICE)
    for store in stores:
        store.attach(RULE)
    return stores


@pytest.mark.parametrize("init", [Uniform(0.1), Normal(0.2), Constant(0.3)])
def test_initial_rows_are_those_of_the_cpu_bit_for_bit(init):
    cpu, gpu = made(init)
    assert torch.equal(gpu.weight.cpu(), cpu.weight)


def test_rows_are_updated_read_and_erased_as_on_the_cpu():
    cpu, gpu = made()
    step = RowStep(rule=RULE, lr=0.1, step=1)
    grads = torch.randn(2, 6)
    for store in (cpu, gpu):
        store.update(store.prepare(torch.tensor([3, 8, 3]), train=True), grads, step)
        store.erase(torch.tensor([8]))
    assert torch.allclose(gpu.weight.cpu(), cpu.weight)
    assert torch.allclose(gpu.read(torch.tensor([3])).state["sum"], cpu.read(torch.tensor([3])).state["sum"])
    assert gpu.clock == cpu.clock == 1
    assert torch.equal(gpu.lookup(torch.tensor([3, 3])), gpu.weight[[3, 3]])


def test_a_snapshot_moves_between_cpu_and_device():
    cpu, gpu = made()
    cpu.update(cpu.prepare(torch.arange(20), train=True), torch.randn(20, 6), RowStep(rule=RULE, lr=0.1, step=1))
    gpu.restore(cpu.snapshot())
    assert torch.equal(gpu.weight.cpu(), cpu.weight)
    assert torch.equal(gpu.state("sum").cpu(), cpu.state("sum"))
    again = copy.deepcopy(gpu)
    assert torch.equal(again.weight, gpu.weight)
    assert again.weight.data_ptr() != gpu.weight.data_ptr()


def test_a_lookup_gives_zeros_where_the_table_says_so_and_stays_on_the_device():
    store = DeviceStore(hr.Table("item", dim=6, rows=20, out_of_range="zero"), 7, DEVICE)
    rows = store.lookup(torch.tensor([19, 20], device=DEVICE))
    assert rows.device == DEVICE
    assert torch.equal(rows[0], store.weight[19])
    assert not rows[1].any()


def test_rows_are_erased_by_the_list_and_no_others():
    cpu, gpu = made(Normal(0.2))
    for store in (cpu, gpu):
        store.load(torch.arange(20), torch.ones(20, 6), {"sum": torch.ones(20, 6)})
        store.erase(torch.tensor([19, 4]))
    assert torch.equal(gpu.weight.cpu(), cpu.weight)
    assert torch.equal(gpu.state("sum").cpu(), cpu.state("sum"))
    with pytest.raises(ValueError, match="rows 0 … 19, but id 20"):
        gpu.erase(torch.tensor([3, 20]))


def test_rows_go_in_parts_and_in_any_order(monkeypatch):
    monkeypatch.setattr(transfer, "PART", 100)  # four rows
    cpu, gpu = made()
    ids, rows = torch.tensor([9, 10, 11, 12, 5, 3, 19, 0, 7]), torch.randn(9, 6)
    for store in (cpu, gpu):
        store.load(ids, rows)
    assert torch.equal(gpu.weight.cpu(), cpu.weight)
    found, expected = gpu.read(ids), cpu.read(ids)
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.state["sum"], expected.state["sum"])
    assert torch.equal(gpu.snapshot().data.rows, cpu.weight)


def test_state_that_does_not_fit_is_refused_before_any_is_allocated(monkeypatch):
    cpu = hr.EmbeddingCollection([hr.Table("a", dim=4, rows=10), hr.Table("b", dim=4, rows=20)])
    gpu = OnDevice(cpu, SIZES[0])
    monkeypatch.setattr(memory, "free_bytes", lambda device: 959)
    with pytest.raises(
        ValueError, match=r"the optimizer state of 2 tables cannot fit: 960 .*959 are free.*RowWiseAdagrad"
    ):
        hr.optim.Adam(gpu, lr=0.1)
    assert all(store.rule is None and not store.states for store in gpu.stores.values())
    adagrad = hr.optim.Adagrad(gpu, lr=0.1)
    assert gpu.stores["a"].memory()["allocated"] == 2 * 160
    adagrad.release()


def test_state_that_is_dropped_makes_room_for_the_next(monkeypatch):
    gpu = OnDevice(hr.EmbeddingCollection([hr.Table("a", dim=4, rows=10)]), SIZES[0])
    stores = [(gpu.stores["a"], RULE)]
    gpu.stores["a"].attach(RULE)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    DeviceStore.expect(stores)
    gpu.stores["a"].detach()
    with pytest.raises(ValueError, match="160 bytes"):
        DeviceStore.expect(stores)


def test_copies_and_pickles_have_rows_state_and_clock():
    _, gpu = made()
    gpu.update(gpu.prepare(torch.arange(5), train=True), torch.randn(5, 6), RowStep(rule=RULE, lr=0.1, step=1))
    for again in (copy.deepcopy(gpu), pickle.loads(pickle.dumps(gpu))):
        assert torch.equal(again.weight, gpu.weight)
        assert torch.equal(again.state("sum"), gpu.state("sum"))
        assert (again.clock, again.rule) == (1, RULE)
        again.clear()
        assert not torch.equal(again.weight, gpu.weight)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a collection on 'cpu' has its rows in native memory")
def test_a_collection_on_the_device_is_saved_and_loaded():
    tables = [hr.Table("item", dim=6, rows=20)]
    saved, loaded = (hr.EmbeddingCollection(tables, seed=seed, device="cuda") for seed in (0, 1))
    rows = hr.optim.Adam(saved, lr=0.1)
    saved({"item": torch.tensor([3, 8], device=DEVICE)}).flat.sum().backward()
    rows.step()
    loaded.load_state_dict(saved.state_dict())
    again = hr.optim.Adam(loaded, lr=0.1)
    again.load_state_dict(rows.state_dict())
    assert torch.equal(loaded["item"].weight, saved["item"].weight)
    assert torch.equal(loaded["item"].state("exp_avg"), saved["item"].state("exp_avg"))
    assert torch.equal(loaded.lookup("item", [3, 5]), saved["item"].weight[[3, 5]])
    cpu = hr.EmbeddingCollection(tables, seed=2)
    cpu.load_state_dict(saved.state_dict())
    assert torch.equal(cpu["item"].weight, saved["item"].weight.cpu())
    cpu["item"].weight.mul_(2)
    loaded.load_state_dict(cpu.state_dict())
    assert torch.equal(cpu["item"].weight, loaded["item"].weight.cpu())
    again = copy.deepcopy(loaded)
    assert torch.equal(again.lookup("item", [3, 5]), loaded.lookup("item", [3, 5]))
    assert again["item"].weight.data_ptr() != loaded["item"].weight.data_ptr()


@pytest.mark.skipif(DEVICE.type != "cuda", reason="memory of the CPU is not counted")
def test_tables_that_a_card_cannot_hold_are_refused_and_leave_it_as_it_was():
    before = torch.cuda.memory_allocated()
    tables = [hr.Table("item", dim=6, rows=20), hr.Table("huge", dim=128, rows=2 * 10**9)]
    emb = hr.EmbeddingCollection(tables, device="cuda")  # rows get their memory on first use
    with pytest.raises(ValueError, match=r"1,032,000,000,560 bytes are needed on cuda:0, .* are free.*huge"):
        hr.optim.SGD(emb, lr=0.1)
    assert torch.cuda.memory_allocated() == before
