"""Launches that Ctrl-C breaks off, or a card without room for one more kernel: later steps are none the worse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.policies import LRU
from hybridrec.ops.row_groups import triton as grouping
from hybridrec.ops.row_update import triton as updating
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import SIZES, OnDevice, Pair, ids
from tests.gpu import DEVICE, needs_gpu, wait_for_the_device

pytestmark = needs_gpu

GROUPING = ("count_occurrences", "list_rows", "place_occurrences", "clear_places")
UPDATES = ("update_single", "update_few", "sum_chunks", "update_many")


class Broken:
    """In place of a kernel: what comes before its launch."""

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        return launch


@contextmanager
def broken_off(module: ModuleType, kernel: str) -> Iterator[None]:
    """Within it, what would launch the kernel is interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, kernel, Broken())
        with pytest.raises(KeyboardInterrupt):
            yield


def pair_of(sizes: Any) -> Pair:
    tables = [hr.Table("item", dim=4, rows=30), hr.Table("user", dim=8, rows=30)]
    return Pair(tables, lambda model: hr.optim.Adagrad(model, lr=0.1), sizes)


def block() -> IdBlock:
    return IdBlock.from_ragged({name: ids(30, 40, 3) for name in ("item", "user")})


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kernel", GROUPING)
def test_where_grouping_was_broken_off_later_steps_are_those_of_the_cpu(kernel: str, sizes: Any) -> None:
    pair = pair_of(sizes)
    with broken_off(grouping, kernel):
        pair.gpu(block())
    for _ in range(2):
        pair.backward(block())
        pair.step()
        pair.agree()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kernel", UPDATES)
def test_where_an_update_was_broken_off_the_next_one_adds_nothing_of_it(kernel: str, sizes: Any) -> None:
    pair = pair_of(sizes)
    pair.backward(block())
    with broken_off(updating, kernel):
        pair.optimizers[1].step()
    pair.optimizers[1].zero_grad()
    pair.optimizers[0].step()
    for name, store in pair.gpu.stores.items():  # some rows had taken their step
        store.weight.copy_(pair.cpu[name].weight)
        for column, values in store.states.items():
            values.copy_(pair.cpu[name].state(column))
    pair.backward(block())
    pair.step()
    pair.agree()


def test_places_of_dynamic_tables_are_zeros_again_too() -> None:
    like = hr.EmbeddingCollection([hr.Table("item", dim=4, capacity=100, eviction=LRU())], seed=3)
    made = OnDevice(like, SIZES[0], lambda table, seed: DeviceHashStore(table, seed, DEVICE))  # pyright: ignore
    block = IdBlock.from_ragged({"item": torch.tensor([5] * 30 + [6] * 3 + [7])})
    with broken_off(grouping, "list_rows"):
        made(block)
    wait_for_the_device()
    assert all(not places.any() for places in made.group.ground.zeros())
    assert len(made.group.ground.zeros()) == 2
