"""Rows of half types on the device: updated in float32 and rounded by chance, with the draws of the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Normal, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK, SIZES, Pair, ids, lists, weighted
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

HALVES = [torch.float16, torch.bfloat16]


def tables(dtype: torch.dtype) -> list[hr.Table]:
    """Two classes of half rows, and one of float32 beside them."""
    return [
        hr.Table("a", dim=16, rows=12, dtype=dtype, init=Uniform(1.0), features=["a", "a_seq"], combiner=COMBINER),
        hr.Table("b", dim=5, rows=30, dtype=dtype, init=Uniform(1.0), combiner="sum"),
        hr.Table("c", dim=16, rows=9, init=Uniform(1.0)),
    ]


COMBINER = {"a": "sum", "a_seq": "none"}


def features(batch: int) -> dict:
    return {"a": ids(12, batch, 2), "a_seq": lists(12, 2, batch), "b": lists(30, 3, batch), "c": ids(9, batch)}


def same_bits(pair: Pair) -> None:
    for name, store in pair.gpu.stores.items():
        assert torch.equal(store.weight.cpu().view(torch.uint8), pair.cpu[name].weight.view(torch.uint8))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("init", [Uniform(0.1), Normal(0.2)])
def test_initial_rows_are_those_of_the_cpu_bit_for_bit(dtype, init):
    table = hr.Table("item", dim=6, rows=20, dtype=dtype, init=init)
    assert torch.equal(DeviceStore(table, 7, DEVICE).weight.cpu(), DenseStore(table, 7).weight)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", SIZES)
def test_exact_updates_are_rounded_as_on_the_cpu_bit_for_bit(dtype, sizes):
    """Numbers of few bits, so that float32 is exact, and a step far below the distance of two half numbers."""
    torch.manual_seed(0)
    pair = Pair(tables(dtype), lambda m: hr.optim.SGD(m, lr=2.0**-12), sizes)
    for batch in (5, 4):
        before = pair.cpu["a"].weight.clone()
        pair.backward(IdBlock.from_ragged(features(batch)), exact=True)
        pair.step()
        same_bits(pair)
        assert not torch.equal(before, pair.cpu["a"].weight)


def test_gradients_of_two_calls_are_rounded_once_as_on_the_cpu():
    torch.manual_seed(1)
    pair = Pair(tables(torch.bfloat16), lambda m: hr.optim.SGD(m, lr=2.0**-12), QUICK)
    for batch in (4, 3):
        pair.backward(IdBlock.from_ragged(features(batch)), exact=True)
    pair.step()
    same_bits(pair)


@pytest.mark.parametrize("kind", [hr.optim.Adagrad, hr.optim.FTRL])
def test_rows_of_an_optimizer_with_state_are_those_of_the_cpu_or_next_to_them(kind):
    """Float32 results that differ in the last bit are seldom rounded to different sides."""
    torch.manual_seed(2)
    pair = Pair(tables(torch.bfloat16), lambda m: kind(m, lr=0.1), QUICK)
    pair.backward(weighted(features(5)))
    pair.step()
    pair.agree(rtol=2.0**-7)
    same = [(store.weight.cpu() == pair.cpu[name].weight).float().mean() for name, store in pair.gpu.stores.items()]
    assert min(same[:2]) > 0.95


@pytest.mark.parametrize("dtype", HALVES)
def test_a_store_rounds_by_itself_as_on_the_cpu(dtype):
    table, rule = hr.Table("item", dim=6, rows=20, dtype=dtype, init=Uniform(1.0)), RowRule("sgd")
    stores, grads = (DenseStore(table, 7), DeviceStore(table, 7, DEVICE)), torch.randint(-8, 9, (2, 6)) / 8
    for store in stores:
        store.attach(rule)
        store.update(store.prepare(torch.tensor([3, 8]), train=True), grads, RowStep(rule=rule, lr=2.0**-12, step=1))
    assert torch.equal(stores[1].weight.cpu(), stores[0].weight)


def test_numbers_and_keys_of_a_step_are_written_where_those_of_the_last_one_were():
    """So that a captured graph reads the new ones."""
    pair = Pair(tables(torch.float16)[1:], lambda m: hr.optim.SGD(m, lr=2.0**-12), QUICK)
    group, places, lines = pair.gpu.group, set(), []
    for lr in (2.0**-12, 2.0**-11):
        for rows in pair.optimizers:
            rows.param_groups[0]["lr"] = lr
        pair.backward(IdBlock.from_ragged(features(2)), exact=True)
        pair.step()
        same_bits(pair)
        places.add((group._numbers_there.data_ptr(), group._keys_there.data_ptr()))
        lines.append((group._numbers_there[0, 0].item(), group._keys_there[:, 1].tolist()))
    assert len(places) == 1
    assert lines == [(2.0**-12, [3, 0]), (2.0**-11, [4, 0])]
