"""Training of tables in two tiers: to the last bit that of tables which are all on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.train.table_figures import TableFigures
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SIZES, OnDevice, ids, lists
from tests.gpu import DEVICE, needs_gpu, wait_for_the_device
from tests.ops.row_cache.caches import SMALL, sound

pytestmark = needs_gpu

TABLES = [
    hr.Table("a", dim=8, rows=60, features=["a", "a_list"]),
    hr.Table("b", dim=8, rows=9, features=["b"]),
    hr.Table("c", dim=5, rows=50, features=["c", "c_seq"], combiner={"c": "max", "c_seq": "none"}, out_of_range="hash"),
    hr.Table("d", dim=8, rows=20, features=["d"]),
]
SLOTS = {"a": 30, "c": 30, "d": 4}  # b is all on the device; a and d share theirs
REFUSED = "tables 'a', 'd' together have 34 rows on .* needed 27 more"
OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=0.125),
    "adam": lambda m: hr.optim.Adam(m, lr=0.125),
}


def store(table: hr.Table, seed: int, tiered: bool = True) -> DeviceStore:
    if table.name not in SLOTS or not tiered:
        return DeviceStore(table, seed, DEVICE)
    return TieredStore(table, seed, DEVICE, SLOTS[table.name], sizes=SMALL)


def block(batch: int) -> IdBlock:
    c = ids(50, batch, 2)
    c[::3] += 2**40  # by their hash
    lists_of = {"a_list": lists(60, 3, batch), "c_seq": lists(50, 2, batch)}
    return IdBlock.from_ragged({"a": ids(60, batch), "b": ids(9, batch), "c": c, "d": ids(20, batch), **lists_of})


class Both:
    """The same tables, all on the device and in tiers, each with its optimizer."""

    def __init__(self, kind: str, tables: list[hr.Table] = TABLES) -> None:
        like = hr.EmbeddingCollection(tables, seed=3)
        self.hot, self.tiered = OnDevice(like, SIZES[0]), OnDevice(like, SIZES[0], store)
        self.lookup: Any = self.tiered._look_up
        self.stores = [part for part in self.tiered.stores.values() if isinstance(part, TieredStore)]
        self.optimizers = [each for home in (self.hot, self.tiered) for each in _optimizers(kind, home)]

    def outputs(self, given: IdBlock) -> list[list[Tensor]]:
        """Those of both, which are the same."""
        found = [[flat, *sequences] for flat, sequences in (self.hot(given), self.tiered(given))]
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
        return found

    def backward(self, given: IdBlock) -> None:
        """Gradients whose sums are exact in any order."""
        found = self.outputs(given)
        factors = [(torch.randint(-8, 9, part.shape) / 8).to(DEVICE) for part in found[0]]
        for parts in found:
            torch.stack([(part * factor).sum() for part, factor in zip(parts, factors, strict=True)]).sum().backward()

    def step(self) -> None:
        """One of all tables of both."""
        for optimizer in self.optimizers:
            optimizer.step()

    def agree(self) -> None:
        for name, expected in self.hot.stores.items():
            found, wanted = self.tiered.stores[name].snapshot().data, expected.snapshot().data
            assert torch.equal(found.rows, wanted.rows)
            assert all(torch.equal(values, wanted.state[column]) for column, values in found.state.items())
        for tier in self.lookup.group.tiers:
            sound(tier.cache)
        assert not self.lookup.group.ground.places.any()


def _optimizers(kind: str, home: OnDevice) -> list[hr.optim.RowOptimizer]:
    if kind != "mixed":
        return [OPTIMIZERS[kind](home)]
    rest = hr.optim.RowWiseAdagrad(home, lr=0.125, tables=["a", "b", "c"])
    return [hr.optim.Adam(home, lr=0.125, tables=["d"]), rest]


@pytest.mark.parametrize("kind", ["sgd", "mixed"])
def test_steps_are_those_of_tables_on_the_device_bit_for_bit(kind: str) -> None:
    torch.manual_seed(0)
    both = Both(kind)
    for number in range(3):
        both.backward(block(6))
        if number == 1:  # a second call before the step, which adds up with the first
            both.backward(block(3))
        both.step()
    both.agree()
    assert all(tiered.cache.figures().moved > 0 for tiered in both.stores)


def test_a_run_is_told_the_hit_rate_and_the_bytes_that_moved_since_it_last_asked() -> None:
    tables = [replace(table, cache=SLOTS.get(table.name)) for table in TABLES]
    both, emb = Both("sgd", tables), hr.EmbeddingCollection(tables, seed=3)
    emb.adopt(both.lookup.group)
    figures = TableFigures(emb)
    before = dict.fromkeys(SLOTS, 0)
    for given in (range(30, 40), range(36, 46), range(36, 46)):
        both.tiered(few(a_list=[list(given)]))
        wait_for_the_device()
        counted = {name: store.counters() for name, store in both.tiered.stores.items() if name in SLOTS}
        found = figures.take()
        for name in SLOTS:
            assert found[name]["bytes_each_way"] == counted[name]["bytes_each_way"] - before[name]
            before[name] = counted[name]["bytes_each_way"]
    assert before["a"] == 13 * 8 * 4, "6 rows of a came, 6 more, and one of d: 8 numbers each"
    assert (found["a"]["bytes_each_way"], found["a"]["hit_rate"]) == (0, 1.0)
    assert "bytes_each_way" not in found["b"], "all of it is on the device"


# -- rows that are not float32 everywhere ------------------------------------------------------------------------


def alike(**options: Any) -> list[hr.Table]:
    """Two tables of one dimension."""
    return [hr.Table(name, dim=8, rows=rows, **options) for name, rows in (("a", 60), ("c", 50))]


def pairs(batch: int) -> IdBlock:
    return IdBlock.from_ragged({"a": torch.randint(0, 60, (batch, 2)), "c": torch.randint(0, 50, (batch,))})


def test_half_rows_are_rounded_as_those_of_tables_on_the_device_bit_for_bit() -> None:
    torch.manual_seed(0)
    both = Both("adam", alike(dtype=torch.bfloat16))
    for number in range(2):
        both.backward(pairs(4))
        if number == 1:  # listed, not grouped
            both.backward(pairs(2))
        both.step()
    both.agree()
    assert both.stores[0].cache.figures().moved > 0


def test_steps_with_packed_cold_rows_are_off_by_their_rounding_alone() -> None:
    torch.manual_seed(0)
    both = Both("sgd", alike(cache=0.5, cold=torch.int8))
    for _ in range(3):
        given, factors = pairs(7), (torch.randint(-8, 9, (7, 16)) / 8).to(DEVICE)
        for home in (both.hot, both.tiered):
            (home(given)[0] * factors).sum().backward()
        both.step()
    found, wanted = (home.stores["a"].snapshot().data.rows for home in (both.tiered, both.hot))
    step = wanted.abs().amax(1, keepdim=True).clamp(min=0.5) / 127  # no row was larger before
    assert bool(((found - wanted).abs() <= 4 * step).all())
    assert not torch.equal(found, wanted)
    assert both.stores[0].cache.figures().moved > 0


def test_lookups_without_gradients_leave_no_rows_in_flight() -> None:
    torch.manual_seed(1)
    both = Both("sgd")
    both.hot.eval(), both.tiered.eval()
    with torch.no_grad():
        for _ in range(6):
            both.outputs(block(6))
    both.tiered.train()
    both.agree()
    assert all(tiered.cache.figures().refused == 0 for tiered in both.stores)


def test_rows_that_wait_for_their_gradient_outlast_lookups_of_others() -> None:
    torch.manual_seed(2)
    both, first, other = Both("sgd"), block(4), block(3)
    found = both.outputs(first)
    with torch.no_grad():
        both.outputs(other)
    for flat, *sequences in found:
        (flat.sum() + sequences[0].sum()).backward()
    both.step()
    both.agree()


def test_a_gradient_that_comes_after_a_step_still_finds_its_rows() -> None:
    torch.manual_seed(3)
    both, first = Both("sgd"), block(4)
    late = both.outputs(first)
    both.backward(block(4))
    both.step()
    for flat, *sequences in late:
        (flat.sum() + sequences[0].sum()).backward()
    both.step()
    both.agree()


def test_a_block_that_is_expected_is_admitted_while_the_one_before_is_out() -> None:
    torch.manual_seed(4)
    both = Both("adam")
    blocks = [block(5).to(DEVICE) for _ in range(4)]
    for each in blocks:
        both.lookup.fetch(each)
    for number, each in enumerate(blocks, 1):
        both.backward(each)
        admitted = {store.tier.figures().admissions for store in both.stores}
        assert admitted == {min(number + 1, len(blocks))}
        both.step()
    both.agree()


def test_ids_that_were_changed_after_they_were_expected_are_looked_up_as_they_are() -> None:
    torch.manual_seed(5)
    both, blocks = Both("sgd"), [block(3).to(DEVICE) for _ in range(2)]
    for each in blocks:
        both.lookup.fetch(each)
    both.backward(blocks[0])
    blocks[1].values[:1] += 1
    both.backward(blocks[1])
    both.step()
    both.agree()


def test_blocks_that_are_expected_and_never_come_hold_no_rows() -> None:
    torch.manual_seed(6)
    both = Both("sgd")
    for _ in range(4):
        gone = block(5).to(DEVICE)
        both.lookup.fetch(gone)
        del gone
        both.backward(block(5).to(DEVICE))
        both.step()
    both.agree()
    assert all(len(tier._flights) <= 1 for tier in both.lookup.group.tiers)


def test_a_lookup_of_others_lets_go_what_waits_so_that_they_do_not_pile_up() -> None:
    torch.manual_seed(7)
    both, coming = Both("sgd"), [block(4).to(DEVICE) for _ in range(2)]
    for each in coming:
        both.lookup.fetch(each)
    both.backward(coming[0])
    both.step()
    with torch.no_grad():
        for _ in range(4):
            both.outputs(block(6))
    both.backward(coming[1])
    both.step()
    both.agree()
    assert all(tiered.cache.figures().refused == 0 for tiered in both.stores)


def test_tables_of_one_dimension_share_slots_and_are_admitted_together() -> None:
    both = Both("sgd")
    a, c, d = both.stores
    assert a.cache is d.cache is not c.cache
    assert (a.cache.slots, len(a.cache.directory), d.base) == (34, 80, 60)
    both.outputs(block(3))
    assert a.cache.figures().admissions == 1


def few(**given: list[Any]) -> IdBlock:
    """A block of these ids, others are 0, lists are empty."""
    count = len(next(iter(given.values())))
    rest = {name: [0] * count for name in "abcd"} | {name: [[]] * count for name in ("a_list", "c_seq")}
    return IdBlock.from_lists(rest | given)


def test_lookups_while_an_expected_block_waits_leave_no_rows_in_flight() -> None:
    torch.manual_seed(7)
    both, waiting = Both("sgd"), block(5).to(DEVICE)
    both.lookup.fetch(waiting)
    both.backward(block(5))
    both.step()
    with torch.no_grad():
        for _ in range(6):
            both.outputs(block(6))
    both.backward(waiting)
    both.step()
    both.agree()
    assert all(tiered.cache.figures().refused == 0 for tiered in both.stores)


def test_more_rows_than_there_is_room_for_are_told_and_none_is_lost() -> None:
    both = Both("sgd")
    both.tiered(few(a_list=[list(range(60))]))[0].sum().backward()
    both.optimizers[1].step()
    wait_for_the_device()
    with pytest.raises(ValueError, match=f"{REFUSED}.*them together cache=61 or more"):
        both.tiered(block(3))
    for name in "ad":
        data, expected = (home.stores[name].snapshot().data for home in (both.tiered, both.hot))
        assert torch.equal(data.rows, expected.rows)  # no gradient was taken


@pytest.mark.parametrize("who", ["the group", "a snapshot", "a capture", "a copy"])
def test_where_no_lookup_follows_whoever_reads_rows_tells_that_there_were_too_many(who: str) -> None:
    both = Both("sgd")
    both.tiered(few(a_list=[list(range(60))]))
    d = both.tiered.stores["d"]
    asks: dict[str, Callable[[], object]] = {
        "the group": both.lookup.group.check,
        "a snapshot": d.snapshot,
        "a capture": d.capture,
        "a copy": lambda: copy.deepcopy(d),
    }
    with pytest.raises(ValueError, match=REFUSED):
        asks[who]()
    for ask in asks.values():  # it is told once
        ask()
    both.tiered(block(3))


@pytest.mark.parametrize(("name", "id", "most"), [("a", 60, 59), ("d", 25, 19), ("d", 34, 19), ("d", -7, 19)])
def test_an_id_outside_a_table_is_told_by_its_own_number(name: str, id: int, most: int) -> None:
    both = Both("sgd")
    found = both.tiered(few(**{name: [id]}))[0]
    at = {"a": 0, "d": 29}[name]
    assert not found[:, at : at + 8].any()
    for _ in range(2):  # it is told once
        with pytest.raises(ValueError, match=f"id {id} of feature {name!r} is outside table {name!r}, 0 … {most}"):
            both.lookup.group.check()
        both.lookup.group.check()
        both.tiered(few(**{name: [id]}))


def test_copies_of_a_collection_share_as_it_does() -> None:
    both = Both("adam")
    both.backward(block(4))
    both.step()
    stores: Any = copy.deepcopy(both.tiered.stores)
    again = DeviceGroup(stores, set(stores), SIZES[0])
    assert len(again.tiers) == 2
    for name, expected in both.hot.stores.items():
        found, wanted = stores[name].snapshot(), expected.snapshot()
        assert torch.equal(found.data.rows, wanted.data.rows)
        assert all(torch.equal(values, wanted.data.state[column]) for column, values in found.data.state.items())
        assert (found.clock, found.rule) == (wanted.clock, wanted.rule)
