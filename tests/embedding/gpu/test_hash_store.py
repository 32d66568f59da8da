"""The store of a dynamic table on the device: whatever is done to it, it holds what the stores of the host hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import LFU, TTL, Constant, MinCount, Normal, Probability, Table, Uniform, state
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Store
from hybridrec.ops.hash_index import reference
from hybridrec.ops.hash_rows import triton_rows
from hybridrec.ops.reserved import Column
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.embedding.test_store import DYNAMIC, IDS, agree, assert_same, contents, operations
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytestmark = needs_gpu

ADAM = RowRule("adam", (StateColumn("m", fill=0.25), StateColumn("v", per_row=True, fill=0.5)))
WIDE = RowRule("adam", (StateColumn("m"), StateColumn("v")))
LOW, HIGH = -(2**63), 2**63 - 1


class Read(DeviceHashStore):
    """One whose memory is for a single row at first, and whose rows are read to the CPU."""

    def __init__(self, table: Table, seed: int = 3, share: Share = WHOLE) -> None:
        super().__init__(table, seed, DEVICE, share, slots=1)

    def lookup(self, ids: Tensor) -> Tensor:
        return super().lookup(ids).cpu()

    def __deepcopy__(self, memo: dict) -> Read:
        made = Read(self.table, self.seed)
        made.restore(self.snapshot())
        return made


def table(capacity: int = 8, dim: int = 3, **options: Any) -> Table:
    return Table("user", dim, capacity=capacity, **options)


def train(of: Store, *ids: int) -> Tensor:
    slots = of.prepare(torch.tensor(ids), train=True)
    rows = of.gather(slots)
    of.release(slots)
    return rows


@settings(max_examples=4 if INTERPRETED else 300, deadline=None)
@given(options=st.sampled_from(DYNAMIC), todo=operations(IDS), capacity=st.integers(1, 6))
def test_it_agrees_with_the_reference_store(options: dict[str, Any], todo: list, capacity: int) -> None:
    agree(Read, table(capacity, init=Normal(0.1), **options), todo)


def test_a_share_has_its_part_of_the_capacity_and_refuses_the_ids_of_others() -> None:
    share = Share(1, 3)
    of, ids = Read(table(capacity=8), share=share), torch.arange(40)
    mine = ids[share.owns(of.table, ids)]
    train(of, *mine[:3].tolist())
    train(of, *mine[3:5].tolist())
    assert of.ids().tolist() == mine[2:5].tolist()
    other = int(ids[~share.owns(of.table, ids)][0])
    for refused in (lambda: train(of, other), lambda: of.load(torch.tensor([other]), torch.zeros(1, 3))):
        with pytest.raises(ValueError, match=f"the row of id {other} is not in Share"):
            refused()
    assert of.ids().tolist() == mine[2:5].tolist()


BEGINNINGS = [
    (3, Uniform(0.3), torch.float32),
    (20, Uniform(0.3), torch.float32),
    (8, Uniform(0.3), torch.bfloat16),
    (18, Normal(0.1), torch.bfloat16),
    (18, Uniform(0.3), torch.float16),
    (5, Constant(0.7), torch.bfloat16),
]


@pytest.mark.parametrize(("dim", "init", "dtype"), BEGINNINGS, ids=str)
def test_rows_begin_with_the_values_that_they_have_on_the_host(dim: int, init: Any, dtype: torch.dtype) -> None:
    given = table(5, dim, init=init, dtype=dtype)
    ours, theirs = Read(given), HashStore(given, 3)
    ours.attach(ADAM)
    assert torch.equal(train(ours, 7, LOW, -1, HIGH, 7), train(theirs, 7, LOW, -1, HIGH, 7))
    state = ours.export().state
    assert state["m"].tolist() == [[0.25] * dim] * 4
    assert state["v"].tolist() == [0.5] * 4


@pytest.mark.parametrize("count", [3, 300])
def test_what_it_holds_goes_to_the_host_and_back(count: int) -> None:
    """Ids, rows, state, scores and sketch; and both go on alike."""
    given = table(6, eviction=LFU(), admission=MinCount(count))
    ours, theirs = Read(given), HashStore(given, 3)
    for store in (ours, theirs):
        store.attach(ADAM)
    train(theirs, *[1] * (count - 1), *[2] * count, *[3] * count)
    theirs.update(
        theirs.prepare(torch.tensor([2, 3]), train=True), torch.ones(2, 3), RowStep(rule=ADAM, lr=0.5, step=1)
    )
    ours.restore(theirs.snapshot())
    assert_same(contents(ours), contents(theirs))
    train(ours, 1, 4)
    train(theirs, 1, 4)
    assert ours.ids().tolist() == [1, 2, 3]
    back = HashStore(given, 3)
    back.restore(ours.snapshot())
    assert_same(contents(back), contents(theirs))
    assert_same([back.sketch()], [theirs.sketch()])
    assert reference.entries(ours.slots.index).keys() == {1, 2, 3}


def test_a_state_dict_of_the_device_is_one_of_the_host() -> None:
    given = table(6, admission=MinCount(2))
    ours, emb = Read(given), hr.EmbeddingCollection([given], seed=3)
    train(ours, 5, 5, 6)
    parts: dict[str, Tensor] = {}
    state.save(ours, "", parts)
    emb.load_state_dict(parts)
    assert_same(contents(emb["user"]), contents(ours))
    other = Read(given)
    report, missing = state.load_all({"user": other}, dict(emb.state_dict()), "")
    assert (report.loaded, missing) == (("user",), [])
    train(other, 6)
    assert other.ids().tolist() == [5, 6]


def test_a_capture_keeps_what_was_there_when_rows_go_and_memory_grows() -> None:
    ours = Read(table(6))
    train(ours, 1, 2, 3)
    before = ours.export()
    with ours.capture() as held:
        chunks = held.chunks(2)
        parts = [next(chunks)]
        assert held.host_bytes > 0
        train(ours, *range(10, 16))  # all others go
        assert held.host_bytes == 0
        parts += chunks
    assert ours.ids().tolist() == [*range(10, 16)]
    assert [part.ids.tolist() for part in parts] == [[1, 2], [3]]
    assert torch.equal(torch.cat([part.rows for part in parts]), before.rows)
    assert [part.touched.tolist() for part in parts if part.touched is not None] == [[0, 0], [0]]


def test_an_id_that_comes_twice_is_refused_and_leaves_no_rows() -> None:
    ours = Read(table())
    held = ours.snapshot()
    data = held.data._replace(
        ids=torch.tensor([4, 4]), rows=torch.ones(2, 3), touched=torch.zeros(2, dtype=torch.int64)
    )
    with pytest.raises(ValueError, match="table 'user': id 4 is there twice; each may come once"):
        ours.restore(replace(held, data=data))
    assert len(ours) == 0


GROWING = [{"eviction": LFU()}, {"eviction": TTL(3), "admission": MinCount(2)}]


def addresses_of(store: DeviceHashStore) -> list[int]:
    return [part.data_ptr() for part in (store.there, store.slots.ids, store.slots.touched, store.slots.free)]


def lived(store: DeviceHashStore, seed: int) -> DeviceHashStore:
    """One that has seen ids come, return, go by its policy, and be erased."""
    store.attach(WIDE)
    generator = torch.Generator().manual_seed(seed)
    for turn in range(7):
        ids = torch.randint(turn * 7, turn * 7 + 18, (14,), generator=generator)
        slots = store.prepare(ids, train=True)
        store.update(slots, torch.ones(len(slots.ids), store.dim), RowStep(rule=WIDE, lr=0.5, step=turn + 1))
        if turn % 3 == 1:
            store.erase(ids[::4])
        store.advance()
    return store


@pytest.mark.parametrize("options", GROWING, ids=str)
def test_a_table_that_grows_is_that_which_had_all_its_memory_from_the_start(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 1)
    given = table(50, **options)
    grown, whole = Read(given), DeviceHashStore(given, 3, DEVICE, slots=50)
    addresses = addresses_of(grown)
    for store in (grown, whole):
        lived(store, seed=1)
        train(store, *range(1000, 1030))  # others go for them
        train(store, *range(1000, 1030))
        store.make_room(50)
    assert_same(contents(grown), contents(whole))
    assert grown.counters() == whole.counters()
    assert grown.counters()["evicted"] + grown.counters()["expired"] > 0
    for part in ("ids", "touched", "counts", "free"):
        assert torch.equal(getattr(grown.slots, part), getattr(whole.slots, part))
    assert_same([grown.sketch()], [whole.sketch()])
    grown.restore(whole.snapshot())  # some entries may not have moved yet
    train(grown, 1000, 2000)
    train(whole, 1000, 2000)
    assert_same(contents(grown), contents(whole))
    assert addresses_of(grown) == addresses


def test_memory_is_that_of_the_rows_that_came_not_of_the_capacity() -> None:
    ours = DeviceHashStore(table(10**9), 3, DEVICE)
    ours.attach(ADAM)
    train(ours, 1, 2, 3)
    assert ours.memory()["allocated"] < 2**25
    assert ours.memory()["rows"] >= memory.FIRST_SLOTS * 12


@pytest.mark.parametrize("most", [600, 0])
def test_a_card_that_is_full_has_memory_for_what_is_needed_or_says_how_much_it_lacks(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    ours = Read(table(10_000))
    ours.attach(ADAM)
    train(ours, *range(400))
    before, held, grow = contents(ours), ours.memory(), Column.grow

    def full(self: Column, count: int) -> None:
        if count > most and self is ours._columns["v"]:  # when others have got some
            raise torch.OutOfMemoryError
        grow(self, count)

    monkeypatch.setattr(Column, "grow", full)
    assert ours.slots.slots == 400
    if most:
        train(ours, *range(400, 600))
        assert (ours.slots.slots, ours.ids().tolist()) == (600, list(range(600)))
        return
    needed = memory.dynamic_bytes(ours.table, 600, ADAM)
    with pytest.raises(ValueError, match=rf"user \({needed:,}\)\. What helps: a smaller capacity=, .*where='host'"):
        train(ours, *range(400, 600))
    assert_same(contents(ours), before)
    assert ours.memory() == held
    assert ours.slots.slots == len(ours.there) == len(ours.states["m"]) == 400


def test_what_grows_where_gradients_are_off_is_written_where_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, grow = Read(table(100)), Column.grow
    ours.attach(ADAM)

    def full(self: Column, count: int) -> None:
        if count > 20 and self is ours._columns["v"]:  # when others have got some
            raise torch.OutOfMemoryError
        grow(self, count)

    with torch.inference_mode():
        ours.load(torch.arange(10), torch.ones(10, 3))
        monkeypatch.setattr(Column, "grow", full)
        with pytest.raises(ValueError, match="cannot fit"):
            ours.load(torch.arange(30), torch.ones(30, 3))
    ours.erase(torch.tensor([3]))
    assert len(ours) == 9
    ours.clear()
    assert len(ours) == 0


# -- on a card -------------------------------------------------------------------------------------------------


on_a_card = pytest.mark.skipif(INTERPRETED, reason="the interpreter runs programs one after the other")


@on_a_card
@pytest.mark.parametrize("options", [{}, {"eviction": LFU()}, {"eviction": TTL(2), "admission": Probability(0.7)}])
def test_programs_that_want_the_same_ids_at_once_give_each_of_them_one_row(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Every id comes several times in most batches, in programs that run beside each other."""
    given = table(120_000, 8, **options)
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 500)  # entries are moving all the time
    ours, theirs = DeviceHashStore(given, 3, DEVICE), HashStore(given, 3)
    generator = torch.Generator().manual_seed(0)
    for turn in range(12):
        ids = torch.randint(0, 30_000, (400_000,), generator=generator) * 0x1E3779B97F4A7C15 + turn * 7_000
        found, wanted = (store.prepare(ids, train=True) for store in (ours, theirs))
        assert torch.equal(found.live(), wanted.live())
        slots = found.slots[found.live()].to(torch.int64)
        assert len(slots.unique()) == len(slots)
        assert torch.equal(ours.gather(found), theirs.gather(wanted))
        for store, each in ((ours, found), (theirs, wanted)):
            store.release(each)
    assert_same(contents(ours), contents(theirs))
    assert ours.counters() == theirs.counters()
    assert int(ours.rows.lacking) == 0
    ours.rows.finish(0)
    assert sorted(reference.entries(ours.slots.index)) == sorted(theirs.snapshot().data.ids.tolist())


@on_a_card
@pytest.mark.parametrize("options", [{}, {"eviction": LFU()}], ids=str)
def test_rows_go_and_are_erased_many_at_a_time_while_entries_move(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Each leaves both indexes beside others that count there, and may never have been in the one that is left."""
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 20)
    given, generator = table(35_000, **options), torch.Generator().manual_seed(5)
    ours, theirs = DeviceHashStore(given, 3, DEVICE, slots=20_000), HashStore(given, 3)
    went = erased = 0
    for turn in range(6):
        count, first = (12_000, 0) if turn == 0 else (200_000, turn * 9_000 - 4_000)  # after the first one it grows
        ids = torch.randint(first, first + 20_000, (count,), generator=generator) * 0x1E3779B97F4A7C15
        before = ours.counters()["evicted"]
        for store in (ours, theirs):
            train(store, *ids.tolist())
            store.advance()
        assert_same(contents(ours), contents(theirs))
        assert ours.counters() == theirs.counters()
        if ours.slots.moving is not None:
            went += ours.counters()["evicted"] - before
            gone = ids.unique()[::5]
            erased += len(gone)
            for store in (ours, theirs):
                store.erase(gone)
    assert min(went, erased) > 8_000
    ours.rows.finish(0)
    assert sorted(reference.entries(ours.slots.index)) == sorted(theirs.snapshot().data.ids.tolist())
    assert int(ours.rows.lacking) == 0
