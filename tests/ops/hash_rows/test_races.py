"""Rows of dynamic tables come and go as on the host, however the programs of each launch disturb each other."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding import LFU, LRU, TTL, MinCount, Probability
from hybridrec.ops.hash_index import triton as hash_index
from hybridrec.ops.hash_rows import triton_rows
from tests.gpu import DEVICE, IN_ORDER, needs_gpu
from tests.ops.hash_rows.both import Both, table, there

pytestmark = [*needs_gpu, pytest.mark.skipif(IN_ORDER, reason="set HYBRIDREC_INTERLEAVED: programs do not meet else")]

FEW = 4  # ids of a program, so that a batch has many


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "SCANNED", 32)
    monkeypatch.setattr(triton_rows, "EVICTED", 32)
    monkeypatch.setattr(hash_index, "PUT", 32)  # two buckets


def train(both: Both, most: list[float], steps: int = 5) -> None:
    """Batches with frequent ids, and some that have not come before; a step has one lookup or two."""
    chance = torch.Generator().manual_seed(steps)
    for step in range(steps):
        drawn = (torch.rand(len(most), 40, generator=chance).pow(3) + step / 2) * torch.tensor(most)[:, None]
        both.train(*[(mine.long() * 2**33 - 2**40).tolist() for mine in drawn], end=step % 3 > 0)


@pytest.mark.parametrize("admission", [None, Probability(0.5), MinCount(2)], ids=str)
@pytest.mark.parametrize("eviction", [LRU(), LFU(), TTL(2), None], ids=str)
def test_a_table_has_the_rows_of_the_host(eviction: object, admission: object) -> None:
    train(Both(table(24, eviction=eviction, admission=admission), ids=FEW), [14])


def test_tables_of_one_batch_have_the_rows_of_the_host() -> None:
    tables = table(20), table(12, "item", eviction=LFU(), admission=MinCount(2)), table(9, "ad", eviction=None)
    train(Both(*tables, ids=FEW), [10, 6, 18])


def test_ids_are_found_and_rows_go_while_entries_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "SLICE", 1)
    monkeypatch.setattr(triton_rows, "HASTE", 40)
    both = Both(table(30, eviction=LFU()), ids=FEW)
    train(both, [20], steps=2)
    rows, store = both.rows, both.stores[0]
    moved = rows.tables[0]
    moved.moving, moved.done, moved.index = moved.index, 0, hash_index.empty(len(moved.index) * 2, DEVICE)
    rows.moved()
    for step in range(4):
        ids = torch.randint(0, 60, (25,), generator=torch.Generator().manual_seed(step)).tolist()
        rows.prepare(there(ids), both.spans((ids,)))
        store.prepare(torch.tensor(ids), train=True)
        rows.advance()
        store.advance()
    rows.finish(0)
    assert int(rows.standing[0, triton_rows.of.EVICTED]) > 0
    both.train([1, 2, 3])
