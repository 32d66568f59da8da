"""A store in two tiers: what any store of fixed rows does, wherever the rows are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Constant, Normal, Uniform, state
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu import memory, tier_class, tiered_store, transfer
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.tier_class import TierClass, classes_of
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.embedding.share import Share
from hybridrec.ops.row_cache.packing import pack, unpack
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.gpu import DEVICE, needs_gpu
from tests.ops.row_cache.caches import SMALL

pytestmark = needs_gpu

RULE = RowRule("adagrad", (StateColumn("sum", fill=0.5),))


def made(init=None, share=Share(), **options) -> tuple[DenseStore, TieredStore]:  # noqa: B008
    """The same rows on the CPU and in tiers, of which some have moved."""
    table = hr.Table("item", dim=6, rows=20, init=init or Uniform(0.1), **options)
    cpu, tiered = DenseStore(table, 7, share), TieredStore(table, 7, DEVICE, 4, share, SMALL)
    for store in (cpu, tiered):
        store.attach(RULE)
    tiered.admit(torch.tensor([3, 1], device=DEVICE))
    return cpu, tiered


def same(tiered: TieredStore, cpu: DenseStore) -> None:
    found, expected = tiered.snapshot().data, cpu.snapshot().data
    assert torch.equal(found.ids, expected.ids)
    torch.testing.assert_close(found.rows, expected.rows, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(found.state["sum"], expected.state["sum"], atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("init", [Uniform(0.1), Normal(0.2), Constant(0.3)])
@pytest.mark.parametrize("share", [Share(), Share(index=1, count=2)], ids=["whole", "share"])
def test_initial_rows_are_those_of_the_cpu_bit_for_bit(init, share, monkeypatch):
    monkeypatch.setattr(transfer, "PART", 100)  # four rows
    cpu, tiered = made(init, share)
    assert torch.equal(tiered.snapshot().data.rows, cpu.weight)


def test_rows_of_a_half_type_begin_as_those_of_the_cpu_and_are_updated_alike():
    cpu, tiered = made(dtype=torch.bfloat16)
    ids, grads = torch.tensor([3, 8, 17]), torch.randn(3, 6)
    assert torch.equal(tiered.snapshot().data.rows, cpu.weight)
    for store in (cpu, tiered):
        store.update(store.prepare(ids, train=True), grads, RowStep(rule=RULE, lr=0.1, step=1))
    assert torch.equal(tiered.snapshot().data.rows, cpu.weight)
    assert tiered.memory()["rows"] == 20 * 6 * 2
    assert (tiered.cache.row_bytes, tiered.cache.cold_bytes) == (36, 36)


def test_rows_are_updated_read_and_erased_as_on_the_cpu():
    cpu, tiered = made()
    grads = torch.randn(3, 6)
    for store in (cpu, tiered):
        store.update(store.prepare(torch.tensor([3, 8, 17, 3]), train=True), grads, RowStep(rule=RULE, lr=0.1, step=1))
        store.erase(torch.tensor([8, 1]))
        store.load(torch.tensor([2, 19]), torch.ones(2, 6), {"sum": torch.ones(2, 6)})
    same(tiered, cpu)
    assert torch.equal(tiered.lookup(torch.tensor([19, 3])), tiered.read(torch.tensor([19, 3])).rows.to(DEVICE))
    assert tiered.clock == cpu.clock == 1
    for store in (cpu, tiered):
        store.clear()
    same(tiered, cpu)


def test_copies_snapshots_and_captures_have_rows_state_and_clock():
    cpu, tiered = made()
    cpu.update(cpu.prepare(torch.arange(20), train=True), torch.randn(20, 6), RowStep(rule=RULE, lr=0.1, step=1))
    tiered.restore(cpu.snapshot())
    for again in (tiered, copy.deepcopy(tiered), pickle.loads(pickle.dumps(tiered))):
        same(again, cpu)
        assert (again.clock, again.rule, len(again)) == (1, RULE, 20)


@pytest.mark.parametrize("change", ["nothing", "moves", "clears"])
def test_a_capture_has_the_rows_of_its_moment_whatever_comes_then(change):
    cpu, tiered = made()
    for store in (cpu, tiered):
        store.load(torch.tensor([19]), torch.ones(1, 6), {"sum": torch.ones(1, 6)})
    with tiered.capture() as held:
        chunks = held.chunks(7)
        found = [next(chunks)]
        assert held.host_bytes == 13 * 48
        if change == "moves":
            tiered.admit(torch.tensor([19, 18, 0], device=DEVICE))
        elif change == "clears":
            tiered.clear()
        assert (held.host_bytes > 0) == (change == "nothing")
        found += chunks
    assert torch.equal(torch.cat([part.rows for part in found]), cpu.weight)
    assert torch.equal(torch.cat([part.state["sum"] for part in found]), cpu.state("sum"))
    assert torch.equal(torch.cat([part.ids for part in found]), torch.arange(20))


def test_figures_tell_what_moved_and_what_is_held():
    _, tiered = made()
    assert tiered.counters() == {"nan_rows": 0, "ids": 2, "cold_ids": 0, "moved_rows": 0, "bytes_each_way": 0}
    slots, _ = tiered.admit(torch.tensor([9, 9, 0], device=DEVICE))
    assert len(slots) == 3
    assert tiered.counters() == {"nan_rows": 0, "ids": 5, "cold_ids": 2, "moved_rows": 1, "bytes_each_way": 48}
    held = tiered.memory()
    assert (held["rows"], held["state"], held["index"]) == (480, 480, 20 * 4 + 4 * 8)


def test_a_state_dict_has_all_rows_and_loading_one_leaves_the_state():
    cpu, tiered = made()
    found: dict = {}
    state.save(tiered, "", found)
    assert torch.equal(found["item.weight"], cpu.weight)
    tiered.load(torch.tensor([2, 19]), torch.ones(2, 6), {"sum": torch.ones(2, 6)})
    rows = torch.randn(20, 6)
    state.load(tiered, {"weight": rows})
    assert torch.equal(tiered.snapshot().data.rows, rows)
    assert torch.equal(tiered.read(torch.tensor([19, 0])).state["sum"], torch.tensor([[1.0], [0.5]]).expand(2, 6))


def test_rows_in_two_tiers_are_no_tensor():
    _, tiered = made()
    with pytest.raises(TypeError, match=r"in two tiers; read\(ids\)"):
        _ = tiered.weight


# -- cold rows in another type -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cold", [torch.bfloat16, torch.float16, torch.int8])
def test_whoever_reads_packed_rows_sees_float32(cold):
    cpu, tiered = made(cache=4, cold=cold)
    rows = torch.randn(20, 6)
    for store in (cpu, tiered):
        store.load(torch.arange(20), rows, {"sum": rows.abs()})
    found = tiered.snapshot().data
    hot, kept = torch.arange(20) < 4, unpack(pack(rows, cold), rows)
    assert torch.equal(found.rows, torch.where(hot[:, None], rows, kept))
    assert torch.equal(found.state["sum"], rows.abs())
    ids = torch.tensor([19, 3, 7])
    for other in (tiered.read(ids).rows, tiered.lookup(ids).cpu(), tiered.gather(tiered.prepare(ids))[[2, 0, 1]]):
        assert torch.equal(other, found.rows[ids])
    slots, _ = tiered.admit(torch.tensor([19, 7], device=DEVICE))
    assert torch.equal(tiered.there[slots].cpu(), found.rows[[19, 7]])
    with tiered.capture() as held:
        now = tiered.snapshot().data.rows
        assert held.host_bytes == 20 * 48
        assert torch.equal(torch.cat([part.rows for part in held.chunks(7)]), now)


def test_a_copy_of_packed_rows_has_what_its_tiers_can_hold():
    _, tiered = made(cache=4, cold=torch.int8)
    tiered.admit(torch.tensor([19, 18], device=DEVICE))
    rows, again = tiered.snapshot().data.rows, copy.deepcopy(tiered).snapshot().data.rows
    assert torch.equal(again[:18], rows[:18])
    assert torch.equal(again[18:], unpack(pack(rows[18:], torch.int8), rows))


def test_figures_of_packed_rows_count_what_lies_and_moves():
    _, tiered = made(cache=4, cold=torch.int8)
    tiered.admit(torch.tensor([9, 9, 0], device=DEVICE))
    assert tiered.counters()["bytes_each_way"] == tiered.counters()["moved_rows"] * (12 + 24)
    assert tiered.counters()["moved_rows"] == 1
    held = tiered.memory()
    assert (held["rows"], held["state"]) == (4 * 24 + 16 * 12, 480)


def test_other_seeds_round_packed_rows_by_other_draws():
    table = hr.Table("item", dim=6, rows=20, cache=4, cold=torch.int8)
    keys = {TieredStore(table, seed, DEVICE, 4, sizes=SMALL).cache.key for seed in (1, 2)}
    assert len(keys) == 2


# -- several that share a cache ----------------------------------------------------------------------------------


def three() -> list[TieredStore]:
    sizes = {"a": (6, 20), "b": (3, 9), "c": (6, 5)}
    tables = [hr.Table(name, dim=dim, rows=rows) for name, (dim, rows) in sizes.items()]
    return [TieredStore(table, 7, DEVICE, 4, sizes=SMALL) for table in tables]


def test_tables_of_one_dimension_are_a_class_as_far_as_it_can_number_their_rows(monkeypatch):
    a, b, c = three()
    assert classes_of([a, b, c]) == [[a, c], [b]]
    monkeypatch.setattr(tier_class, "MOST_ROWS", 24)
    assert classes_of([a, b, c]) == [[a], [b], [c]]


def test_a_table_with_more_rows_than_a_cache_can_number_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(tiered_store, "MOST_ROWS", 19)
    told = r"table 'item' has 20 rows on .* and its host, and a cache is for at most 19 of them; spread it"
    with pytest.raises(ValueError, match=told):
        made()
    TieredStore(hr.Table("item", 6, rows=20), 7, DEVICE, 4, Share(0, 2))  # of which each GPU has half


def test_a_card_that_lacks_memory_for_hot_rows_says_how_much_and_what_there_was_stays(monkeypatch):
    a, _, c = three()
    tier = TierClass([a, c])
    a.attach(RULE)
    a.load(torch.tensor([19]), torch.ones(1, 6), {"sum": torch.full((1, 6), 2.0)})
    expected = a.snapshot().data

    def full(*size: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(tier_class.torch, "full", full)
        told = r"the hot optimizer state of 1 table cannot fit: 32 bytes are needed on .* a, c .*smaller cache="
        with pytest.raises(ValueError, match=told):
            c.attach(RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),)))
        with pytest.raises(ValueError, match="places of rows in two tiers of 1 table cannot fit: 164 bytes"):
            TierClass(three()[::2])
    assert len(tier.cache.columns) == 2
    c.admit(torch.tensor([4, 0, 5], device=DEVICE))
    found = a.snapshot().data
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.state["sum"], expected.state["sum"])
    c.attach(RULE)
    assert not (c.snapshot().data.state["sum"] - 0.5).any()


def test_rows_that_are_not_trained_have_no_room_for_the_state_of_others():
    item, words = (hr.Table(name, 6, rows=20, cache=4, trainable=name == "item") for name in ("item", "words"))
    group = DeviceGroup({t.name: TieredStore(t, 7, DEVICE, 4, sizes=SMALL) for t in (item, words)}, {"item"})
    group.stores["item"].attach(RULE)
    assert [len(tier.cache.columns) for tier in group.tiers] == [2, 1]
    expected = memory.cold_bytes(item, RULE) + memory.cold_bytes(words)
    assert sum(held.cold.tensor.nbytes for tier in group.tiers for held in tier._held) == expected


def test_rows_and_state_of_tables_that_share_a_cache_are_their_own():
    a, _, c = three()
    alone = {name: DenseStore(store.table, 7) for name, store in {"a": a, "c": c}.items()}
    tier = TierClass([a, c])
    assert (tier.cache.slots, a.base, c.base, a.fresh) == (8, 0, 20, False)
    adam = RowRule("adam", (StateColumn("exp_avg", fill=0.25), StateColumn("exp_avg_sq")))
    for store, rule in ((a, RULE), (c, adam), (alone["a"], RULE), (alone["c"], adam)):
        store.attach(rule)
    assert len(tier.cache.columns) == 3  # rows, what both have, and what one needs beside that
    c.admit(torch.tensor([4, 0], device=DEVICE))
    for store in (c, alone["c"]):
        store.load(torch.tensor([4]), torch.ones(1, 6), {"exp_avg": torch.ones(1, 6)})
    for name, store in {"a": a, "c": c}.items():
        found, expected = store.snapshot().data, alone[name].snapshot().data
        assert torch.equal(found.rows, expected.rows)
        assert {each: values.tolist() for each, values in found.state.items()} == {
            each: values.tolist() for each, values in expected.state.items()
        }


def test_state_that_is_to_fit_the_card_is_that_of_the_hot_rows_of_each_table_once(monkeypatch):
    a, _, c = three()
    tier = TierClass([a, c])
    monkeypatch.setattr(memory, "free_bytes", lambda device: tier.cache.slots * 6 * 4)
    TieredStore.expect([(a, RULE), (c, RULE)])
    for store in (a, c):
        store.attach(RULE)
    assert tier.cache.columns[1].hot.nbytes == tier.cache.slots * 6 * 4
    monkeypatch.setattr(memory, "free_bytes", lambda device: -1)  # beside what they have
    with pytest.raises(ValueError, match=r"2 tables cannot fit: 192 bytes are needed .* and 191 are free.*a \(96\)"):
        TieredStore.expect([(a, RULE), (c, RULE)])


def test_state_that_no_table_of_a_class_has_any_more_takes_no_memory():
    a, _, c = three()
    tier = TierClass([a, c])
    for store in (a, c):
        store.attach(RULE)
    a.detach()
    assert len(tier.cache.columns) == 2
    c.load(torch.tensor([3]), torch.ones(1, 6), {"sum": torch.ones(1, 6)})
    a.attach(RULE)  # the memory of the other, at its fill
    assert bool((a.snapshot().data.state["sum"] == 0.5).all())
    assert c.read(torch.tensor([3, 2])).state["sum"].mean(1).tolist() == [1.0, 0.5]
    for store in (a, c):
        store.detach()
    assert len(tier.cache.columns) == 1
