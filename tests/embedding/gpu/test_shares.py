"""Shares of a table on the device: what they hold and do is what a share on the CPU holds and does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding import Constant, Normal, Table, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

SHARES = [Share(), Share(2, 3), Share(column=3, width=2), Share(1, 2, 1, 5), Share(9, 10), Share(empty=True)]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
ADAGRAD = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True, fill=0.25),))
ADAM = RowRule("adam", (StateColumn("exp_avg"), StateColumn("exp_avg_sq")))


def made(table: Table, share: Share, seed: int = 5) -> tuple[DenseStore, DeviceStore]:
    return DenseStore(table, seed, share), DeviceStore(table, seed, DEVICE, share)


def same(cpu: DenseStore, gpu: DeviceStore) -> bool:
    """Whether all rows and states are equal bit for bit."""
    names = cpu.rule.names if cpu.rule else ()
    return torch.equal(gpu.weight.cpu(), cpu.weight) and all(
        torch.equal(gpu.state(name).cpu(), cpu.state(name)) for name in names
    )


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("init", [Uniform(), Normal(), Constant(0.3)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_share_begins_with_the_rows_of_one_on_the_cpu_bit_for_bit(share, init, dtype):
    cpu, gpu = made(Table("item", 7, rows=8, init=init, dtype=dtype), share)
    assert (gpu.share, gpu.table, gpu.dim, len(gpu)) == (share, cpu.table, cpu.dim, len(cpu))
    assert gpu.ids().tolist() == cpu.ids().tolist()
    assert same(cpu, gpu)
    gpu.weight.fill_(1)
    gpu.erase(gpu.ids()[:1])
    assert torch.equal(gpu.weight[:1].cpu(), cpu.weight[:1])
    gpu.clear()
    assert same(cpu, gpu)


def test_a_share_takes_and_gives_ids_of_the_whole_table():
    cpu, gpu = made(Table("item", 2, rows=11), Share(1, 3))
    for store in (cpu, gpu):
        store.attach(ADAGRAD)
        store.load(torch.tensor([10, 4]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"sum": torch.tensor([5.0, 6.0])})
    assert gpu.weight[[3, 1]].tolist() == [[1, 2], [3, 4]]
    assert gpu.lookup(torch.tensor([4, 10, 4])).tolist() == [[3, 4], [1, 2], [3, 4]]
    found = gpu.read(torch.tensor([10, 1]))
    assert (found.ids.tolist(), found.state["sum"].tolist()) == ([10, 1], [5, 0.25])
    assert [part.ids.tolist() for part in gpu.chunks(3)] == [[1, 4, 7], [10]]
    slots = gpu.prepare(torch.tensor([7, 1]), train=True)
    assert (slots.ids.tolist(), slots.slots.tolist()) == ([1, 7], [0, 2])
    assert gpu.dirty(0).tolist() == []
    gpu.release(slots)
    assert gpu.dirty(0).tolist() == gpu.snapshot().data.ids.tolist() == [1, 4, 7, 10]
    assert same(cpu, gpu)


def test_a_capture_has_ids_of_the_whole_table_also_when_rows_changed_meanwhile():
    _, gpu = made(Table("item", 2, rows=11), Share(1, 3))
    before, captures = gpu.weight.cpu().clone(), [gpu.capture() for _ in range(2)]
    begun = [next(each.chunks(3)) for each in captures[:1]]
    gpu.weight.zero_()
    assert begun[0].ids.tolist() == [1, 4, 7]
    parts = list(captures[1].chunks(3))
    assert [part.ids.tolist() for part in parts] == [[1, 4, 7], [10]]
    assert torch.equal(torch.cat([part.rows for part in parts]), before)


@pytest.mark.parametrize("do", ["load", "read", "prepare", "lookup", "erase"])
def test_rows_that_are_in_another_share_are_refused(do):
    _, gpu = made(Table("item", 2, rows=11), Share(1, 3))
    ids, before = torch.tensor([1, 5]), gpu.weight.clone()
    with pytest.raises(ValueError, match=r"table 'item': the row of id 5 is not in Share\(index=1, count=3"):
        gpu.load(ids, torch.ones(2, 2)) if do == "load" else getattr(gpu, do)(ids)
    assert torch.equal(gpu.weight, before)


@pytest.mark.parametrize("share", [Share(), Share(1, 3), Share(empty=True)])
def test_ids_beyond_a_table_of_zeros_have_no_row_in_a_share(share):
    _, gpu = made(Table("item", 2, rows=11, out_of_range="zero"), share)
    assert gpu.lookup(torch.tensor([11, -5])).tolist() == [[0, 0], [0, 0]]
    assert gpu.gather(gpu.prepare(torch.tensor([11, -5]))).tolist() == [[0, 0]]
    with pytest.raises(ValueError, match="no row for id 11"):
        gpu.read(torch.tensor([11]))


@pytest.mark.parametrize("share", SHARES)
def test_copies_and_snapshots_have_the_same_share_and_rows(share):
    cpu, gpu = made(Table("item", 7, rows=8), share)
    gpu.attach(ADAGRAD)
    gpu.weight.mul_(2)
    gpu.state("sum").fill_(3)
    for copied in (copy.deepcopy(gpu), pickle.loads(pickle.dumps(gpu))):
        assert copied.share == share
        assert torch.equal(copied.weight, gpu.weight)
        assert torch.equal(copied.state("sum"), gpu.state("sum"))
    cpu.restore(gpu.snapshot())
    assert same(cpu, gpu)
    gpu.clear()
    with cpu.capture() as held:
        gpu.refill(held)
    assert same(cpu, gpu)


def test_a_store_of_no_rows_does_all_that_stores_do():
    _, gpu = made(Table("item", 4, rows=5), Share(empty=True))
    gpu.attach(ADAGRAD)
    nothing = torch.empty(0, dtype=torch.int64)
    gpu.update(gpu.prepare(nothing, train=True), torch.empty(0, 4), RowStep(rule=ADAGRAD, lr=1, step=1))
    gpu.load(nothing, torch.empty(0, 4))
    gpu.erase(nothing)
    gpu.clear()
    gpu.restore(gpu.snapshot())
    assert (len(gpu), gpu.clock, gpu.export().rows.shape, gpu.memory()["allocated"]) == (0, 1, (0, 4), 0)
    with pytest.raises(ValueError, match="the row of id 1 is not in Share"):
        gpu.erase(torch.tensor([1]))


@pytest.mark.parametrize("share", [Share(1, 3), Share(0, 2, 3, 9)])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_share_is_updated_and_rounded_as_on_the_cpu(share, dtype):
    cpu, gpu = made(Table("item", 16, rows=12, dtype=dtype, init=Uniform(1.0)), share)
    grads, rule = torch.randint(-8, 9, (3, cpu.dim)) / 8, RowRule("sgd")
    for store in (cpu, gpu):
        store.attach(rule)
        slots = store.prepare(store.ids()[[0, 2, 3]], train=True)
        store.update(slots, grads, RowStep(rule=rule, lr=2.0**-12, step=1))
    assert same(cpu, gpu)


def test_rows_state_and_memory_of_a_share_are_counted_as_they_are():
    _, gpu = made(Table("item", 8, rows=11, dtype=torch.bfloat16), Share(1, 3, 4))
    gpu.attach(ADAM)
    assert gpu.memory()["rows"] == 4 * 4 * 2
    assert gpu.memory()["state"] == 2 * 4 * 4 * 4
    assert gpu.state("exp_avg").shape == (4, 4)
