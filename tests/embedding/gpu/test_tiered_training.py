"""Training of tables in two tiers: to the last bit that of tables which are all on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SIZES, OnDevice, ids, lists
from tests.gpu import DEVICE, needs_gpu
from tests.ops.row_cache.caches import SMALL, sound

pytestmark = needs_gpu

TABLES = [
    hr.Table("a", dim=8, rows=60, features=["a", "a_list"]),
    hr.Table("b", dim=8, rows=9, features=["b"]),
    hr.Table("c", dim=5, rows=50, features=["c", "c_seq"], combiner={"c": "max", "c_seq": "none"}, out_of_range="hash"),
]
SLOTS = {"a": 34, "c": 30}  # b is all on the device
OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=0.125),
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.125),
    "adam": lambda m: hr.optim.Adam(m, lr=0.125),
}


def store(table: hr.Table, seed: int) -> DeviceStore:
    if table.name not in SLOTS:
        return DeviceStore(table, seed, DEVICE)
    return TieredStore(table, seed, DEVICE, SLOTS[table.name], sizes=SMALL)


def block(batch: int) -> IdBlock:
    c = ids(50, batch, 2)
    c[::3] += 2**40  # by their hash
    lists_of = {"a_list": lists(60, 3, batch), "c_seq": lists(50, 2, batch)}
    return IdBlock.from_ragged({"a": ids(60, batch), "b": ids(9, batch), "c": c, **lists_of})


class Both:
    """The same tables, all on the device and in tiers, each with its optimizer."""

    def __init__(self, kind: str) -> None:
        like = hr.EmbeddingCollection(TABLES, seed=3)
        self.hot, self.tiered = OnDevice(like, SIZES[0]), OnDevice(like, SIZES[0], store)
        self.lookup: Any = self.tiered._look_up
        self.stores = [part for part in self.tiered.stores.values() if isinstance(part, TieredStore)]
        self.optimizers = [OPTIMIZERS[kind](home) for home in (self.hot, self.tiered)]

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
        for optimizer in self.optimizers:
            optimizer.step()

    def agree(self) -> None:
        for name, expected in self.hot.stores.items():
            found, wanted = self.tiered.stores[name].snapshot().data, expected.snapshot().data
            assert torch.equal(found.rows, wanted.rows)
            assert all(torch.equal(values, wanted.state[column]) for column, values in found.state.items())
        for tiered in self.stores:
            sound(tiered.cache)
        assert not self.lookup.group._places.any()


@pytest.mark.parametrize("kind", OPTIMIZERS)
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
        admitted = {store.cache.figures().admissions for store in both.stores}
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
    for _ in range(6):
        gone = block(5).to(DEVICE)
        both.lookup.fetch(gone)
        del gone
        both.backward(block(5).to(DEVICE))
        both.step()
    both.agree()
    assert all(len(store._flights) <= 1 for store in both.stores)


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
    many = {"a": torch.arange(60), "b": torch.zeros(60).long(), "c": torch.zeros(60).long()}
    empty = {"a_list": [[]] * 60, "c_seq": [[]] * 60}
    given = IdBlock.from_lists({**{name: part.tolist() for name, part in many.items()}, **empty})
    both.tiered(given)[0].sum().backward()
    both.optimizers[1].step()
    with pytest.raises(ValueError, match=r"table 'a' has 34 rows on .* needed 26 more.*cache=60 or more"):
        both.tiered(block(3))
    data, expected = (home.stores["a"].snapshot().data for home in (both.tiered, both.hot))
    assert torch.equal(data.rows, expected.rows)  # no gradient was taken


def test_an_id_outside_a_table_is_told_by_its_own_number() -> None:
    both = Both("sgd")
    given = {"a": [60], "b": [0], "c": [0], "a_list": [[]], "c_seq": [[]]}
    both.tiered(IdBlock.from_lists(given))
    with pytest.raises(ValueError, match="id 60 of feature 'a' is outside table 'a', 0 … 59"):
        both.tiered(block(3))
