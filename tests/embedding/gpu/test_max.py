"""Features pooled by max on the device agree with the CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Constant
from hybridrec.types import IdBlock, Ragged
from tests.embedding.gpu.on_device import QUICK, SIZES, Pair, ids, lists, weighted
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

COMBINER = {"a": "max", "a_sum": "mean", "a_seq": "none", "a_list": "max"}
TABLES = [
    hr.Table("a", dim=8, rows=9, features=list(COMBINER), combiner=COMBINER),
    hr.Table("b", dim=5, rows=30, combiner="max", out_of_range="zero"),
    hr.Table("c", dim=5, rows=12, dtype=torch.float16, combiner="max"),
]


def features(batch: int) -> dict:
    pooled = {"a": ids(9, batch), "a_sum": lists(9, 3, batch), "a_list": lists(9, 4, batch)}
    return {**pooled, "a_seq": lists(9, 2, batch), "b": ids(30, batch, 3), "c": lists(12, 3, batch)}


def made(tables=TABLES) -> Pair:
    return Pair(tables, lambda m: hr.optim.Adagrad(m, lr=0.1), QUICK)


def close(pair: Pair) -> None:
    pair.agree(rtol=2.0**-10)  # a half number, or the next one


@pytest.mark.parametrize("sizes", SIZES)
def test_steps_are_those_of_the_cpu(sizes):
    torch.manual_seed(0)
    pair = Pair(TABLES, lambda m: hr.optim.Adagrad(m, lr=0.1), sizes)
    pair.backward(weighted(features(6)))
    pair.step()
    close(pair)


def test_a_second_step_goes_on_from_the_first():
    torch.manual_seed(1)
    pair = made(TABLES[:2])
    for batch in (5, 4):
        pair.backward(IdBlock.from_ragged(features(batch)))
        pair.step()
        close(pair)


def test_of_equal_numbers_the_first_takes_the_gradient_and_all_ids_are_touched():
    """Momentum tells a row with a gradient of zeros from one without: its state decays."""
    table = hr.Table("a", dim=3, rows=6, combiner="max", init=Constant(0.5))
    pair = Pair([table], lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.5), QUICK)
    block = IdBlock.from_ragged({"a": Ragged(torch.tensor([4, 2, 4, 1, 1]), torch.tensor([0, 3, 3, 5]))})
    for _ in range(2):
        pair.backward(block)
        pair.step()
        pair.agree()


def test_an_empty_bag_gives_zeros_and_a_missing_id_may_win():
    table = hr.Table("a", dim=3, rows=6, combiner="max", init=Constant(-0.5), out_of_range="zero")
    pair = made([table])
    block = IdBlock.from_ragged({"a": Ragged(torch.tensor([4, 9, 2]), torch.tensor([0, 2, 2, 3]))})
    _, [flat] = pair.outputs(block)
    assert torch.equal(flat.cpu(), torch.tensor([0.0, 0.0, -0.5])[:, None].expand(3, 3))
    pair.backward(block)
    pair.step()
    pair.agree()


def test_nan_is_larger_than_any_number():
    pair = made([hr.Table("a", dim=2, rows=3, combiner="max")])
    for store in (pair.cpu["a"], pair.gpu.stores["a"]):
        store.weight[1, 0] = torch.nan
    expected, got = pair.cpu({"a": torch.tensor([[0, 1, 2]])}).flat, pair.gpu(IdBlock.from_lists({"a": [[0, 1, 2]]}))[0]
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    assert got[0].isnan().tolist() == [True, False]


@pytest.mark.parametrize("deterministic", [False, True])
def test_several_calls_and_the_deterministic_mode_give_the_same_rows(deterministic):
    torch.manual_seed(2)
    pair = made(TABLES[:2])
    for batch in (4, 3)[deterministic:]:
        pair.backward(weighted(features(batch)))
    torch.use_deterministic_algorithms(deterministic)
    try:
        pair.step()
    finally:
        torch.use_deterministic_algorithms(False)
    close(pair)


def test_a_batch_without_rows_does_nothing():
    pair = made()
    pair.backward(IdBlock.from_ragged(features(0)))
    pair.step()
    pair.agree(atol=0.0)


def test_a_lookup_of_eval_takes_gradients_as_on_the_cpu():
    torch.manual_seed(3)
    pair = made(TABLES[:2])
    pair.cpu.eval(), pair.gpu.eval()
    pair.backward(IdBlock.from_ragged(features(5)))
    pair.step()
    close(pair)
    with torch.no_grad():
        assert not pair.gpu(IdBlock.from_ragged(features(2)))[0].requires_grad
    assert pair.gpu.group.device == DEVICE
