"""Columns grow where they lie, take no more memory than they were asked to have, and give it back."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from hybridrec.ops.reserved import Column, HostPages, Whole, grow_all
from tests.gpu import DEVICE, INTERPRETED, captures, needs_gpu, not_sanitized
from tests.ops.taken import Taken, mapped

pytestmark = needs_gpu

MANY = 10**9  # elements that no test has memory for
on_a_card = pytest.mark.skipif(INTERPRETED, reason="the host gives memory when it is written to")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), torch.int64), ((3,), torch.bfloat16), ((5,), torch.float16), ((), torch.float32)]
)
def test_a_column_keeps_its_address_and_what_it_holds_when_it_grows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    column, before = Column(MANY, shape, dtype, DEVICE), torch.empty(0, *shape, dtype=dtype)
    for count in (1, 1000, 1000, 700_000):
        column.grow(count)
        assert (column.tensor.shape, column.tensor.dtype) == ((count, *shape), dtype)
        assert column.tensor.data_ptr() == column.address
        assert torch.equal(column.tensor[: len(before)].cpu(), before)
        column.tensor.copy_(torch.arange(column.tensor.numel()).view(column.tensor.shape) % 100)
        before = column.tensor.cpu()


def test_addresses_take_no_memory() -> None:
    column = Column(MANY, (16,), torch.float32, DEVICE)
    assert (column.count, column.nbytes) == (0, 0)
    column.grow(1000)
    assert 64_000 <= column.nbytes <= 2**21


def test_what_is_less_than_a_card_can_map_is_whole_at_once() -> None:
    memory = Whole(100, DEVICE)
    assert memory.extent == 0
    memory.grow(3)
    address = memory.address
    memory.tensor(3).fill_(7)
    memory.grow(90)
    assert (memory.address, memory.extent, memory.tensor(90)[:3].tolist()) == (address, 100, [7, 7, 7])
    memory.shrink(0)
    assert memory.extent == 0


def test_where_one_column_cannot_grow_none_does() -> None:
    columns = [Column(MANY, (), torch.int64, DEVICE), Column(2000, (), torch.int64, DEVICE)]
    grow_all(columns, 500)
    columns[0].tensor[:] = 3
    held = [column.nbytes for column in columns]
    with pytest.raises(torch.OutOfMemoryError, match="1,000,000 elements, where 2,000 have addresses"):
        grow_all(columns, 1_000_000)
    assert [column.count for column in columns] == [500, 500]
    assert [column.nbytes for column in columns] == held
    grow_all(columns, 1500)
    assert columns[0].tensor[:500].tolist() == [3] * 500


@pytest.mark.skipif(not INTERPRETED, reason="pages of the host stand in a file")
def test_pages_of_the_host_go_with_the_last_tensor_of_them() -> None:
    pages = HostPages(2**40)
    pages.grow(5)
    first, tensor = f"{pages.address:x}-", pages.tensor(5)
    del pages
    gc.collect()
    assert first in Path("/proc/self/maps").read_text()
    tensor.fill_(1)
    del tensor
    gc.collect()
    assert first not in Path("/proc/self/maps").read_text()


@on_a_card
@not_sanitized
def test_memory_of_a_card_goes_with_the_last_tensor_of_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    column = Column(MANY, (64,), torch.float32, DEVICE)
    column.grow(1 << 20)
    tensor, address = column.tensor, column.address
    del column
    gc.collect()
    tensor.fill_(2)
    assert float(tensor[-1].sum()) == 128
    assert (taken.bytes, mapped(address)) == (2**28, True)
    del tensor
    gc.collect()
    assert (taken.bytes, mapped(address)) == (0, False)


@captures
def test_a_graph_is_whole_though_a_column_goes_while_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, number = Taken(monkeypatch), torch.zeros((), device=DEVICE)
    column = Column(MANY, (64,), torch.float32, DEVICE)
    column.grow(1 << 20)
    address, graph = column.address, torch.cuda.CUDAGraph()
    assert mapped(address)
    with torch.cuda.graph(graph):
        number.add_(1)
        del column
        gc.collect()
        kept = taken.bytes
    graph.replay()
    assert (float(number), kept) == (1, 2**28)
    Column(MANY, (64,), torch.float32, DEVICE)  # what is gone by now is given back
    assert (taken.bytes, mapped(address)) == (0, False)


@on_a_card
@not_sanitized
def test_memory_that_torch_holds_for_later_is_given_to_a_column() -> None:
    free, total = torch.cuda.mem_get_info(DEVICE)
    held = torch.empty(free - 2**30, dtype=torch.uint8, device=DEVICE)
    del held
    column = Column(total, (), torch.uint8, DEVICE)
    column.grow(2**31)
    column.tensor[-1] = 1
    with pytest.raises(torch.OutOfMemoryError, match="cuMemCreate: CUDA error 2"):
        column.grow(total)
    assert column.count == 2**31
