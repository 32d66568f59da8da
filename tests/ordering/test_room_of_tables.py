"""What is done with all rows of a table takes no room for a second one on the card: made, read, written, in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Constant, Normal, Uniform, state
from hybridrec.embedding.gpu import transfer
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.optim.rule import RowRule, StateColumn
from tests.gpu import INTERPRETED, needs_gpu
from tests.ordering.card import Card
from tests.ordering.memory import CARD, Block
from tests.ordering.runs import THERE

pytestmark = [*needs_gpu, pytest.mark.skipif(not INTERPRETED, reason="kernels tell their addresses when interpreted")]

ROWS, DIM = 600, 8
TABLE = 4 * ROWS * DIM  # bytes
PART = 512  # bytes that go at a time
LITTLE = TABLE // 4  # a few parts, with the numbers of their rows
ADAGRAD = RowRule("adagrad", (StateColumn("sum", fill=0.5),))


class Room:
    """The bytes that are in use on the card."""

    def __init__(self, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[Block, int] = {}
        self.used = self.most = 0
        self._add, self._remove = card.add, card.remove
        monkeypatch.setattr(card, "add", self._added)
        monkeypatch.setattr(card, "remove", self._removed)

    def _added(self, address: int, size: int, kind: str) -> Block:
        block = self._add(address, size, kind)
        if kind == CARD:
            self._sizes[block] = size
            self.used += size
            self.most = max(self.most, self.used)
        return block

    def _removed(self, block: Block) -> None:
        self.used -= self._sizes.pop(block, 0)
        self._remove(block)

    @contextmanager
    def beside(self) -> Iterator[Callable[[], int]]:
        """Gives the most bytes that were in use within it, beyond those before."""
        before = self.most = self.used
        yield lambda: self.most - before


@pytest.fixture
def room(card: Card, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr(transfer, "PART", PART)
    monkeypatch.setattr(state, "PART", PART // (4 * DIM))
    return Room(card, monkeypatch)


@pytest.mark.parametrize("init", [Uniform(0.1), Normal(0.1), Constant(0.5)], ids=str)
def test_a_table_is_made_in_its_own_memory_and_so_is_its_state(room: Room, init: Any) -> None:
    with room.beside() as taken:
        store = DeviceStore(hr.Table("item", DIM, rows=ROWS, init=init), 3, THERE)
        assert TABLE <= taken() < TABLE + LITTLE
    with room.beside() as taken:
        store.attach(ADAGRAD)
        assert TABLE <= taken() < TABLE + LITTLE
    with room.beside() as taken:
        store.attach(ADAGRAD)  # another one takes its place
        store.clear()
        assert taken() < LITTLE


ALL: dict[str, Callable[[DeviceStore], Any]] = {
    "snapshot": lambda store: store.snapshot(),
    "restore": lambda store: store.restore(store.snapshot()),
    "capture": lambda store: [len(part.rows) for part in store.capture().chunks(50)],
    "settle": lambda store: (held := store.capture(), store.settle(), list(held.chunks(50))),
    "refill": lambda store: store.refill(store.capture()),
    "read": lambda store: store.read(torch.randperm(ROWS)),
    "load": lambda store: store.load(torch.randperm(ROWS), torch.ones(ROWS, DIM), {"sum": torch.ones(ROWS, DIM)}),
    "load in order": lambda store: store.load(torch.arange(ROWS), torch.ones(ROWS, DIM)),
    "erase": lambda store: store.erase(torch.arange(ROWS)),
    "load a state_dict": lambda store: state.load(store, {"weight": torch.ones(ROWS, DIM)}),
}


@pytest.mark.parametrize("what", ALL)
def test_all_rows_are_read_and_written_part_by_part(room: Room, what: str) -> None:
    store = DeviceStore(hr.Table("item", DIM, rows=ROWS), 3, THERE)
    store.attach(ADAGRAD)
    with room.beside() as taken:
        ALL[what](store)
        assert taken() < LITTLE
