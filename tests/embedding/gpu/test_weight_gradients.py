"""Gradients of the weights of ids on the device agree with the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import MultiHash
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK, Pair, ids, lists, weighted
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

KINDS = ["sum", "mean", "sqrtn", "max", "none"]
TABLES = [
    hr.Table("a", dim=8, rows=9, features=KINDS, combiner={kind: kind for kind in KINDS}, out_of_range="zero"),
    hr.Table("b", dim=5, rows=30, combiner="mean", dtype=torch.float16, trainable=False),
    hr.Table("m", dim=8, hashes=MultiHash(2, 7), features=["m", "m_seq"], combiner={"m": "sqrtn", "m_seq": "none"}),
]


def features(batch: int) -> dict:
    given = {"sum": ids(9, batch), "mean": lists(10, 3, batch), "sqrtn": ids(10, batch, 2), "max": lists(10, 3, batch)}
    given |= {"none": lists(10, 2, batch), "b": ids(30, batch, 2), "m": lists(99, 3, batch), "m_seq": ids(99, batch)}
    return {**given, "other": ids(5, batch)}


def with_leaf(block: IdBlock, device: torch.device | str) -> tuple[IdBlock, torch.Tensor]:
    there = block.to(device)
    assert there.weights is not None
    leaf = there.weights.detach().clone().requires_grad_()
    return replace(there, weights=leaf), leaf


def gradients(pair: Pair, block: IdBlock, parts: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the weights of both, from the same gradients of some of the outputs."""
    found = []
    for module, device in ((pair.cpu, "cpu"), (pair.gpu, DEVICE)):
        mine, leaf = with_leaf(block, device)
        made = module(mine)
        if device == "cpu":
            outputs = [made.flat, *(part.values for part in made.sequences.values())]
        else:
            outputs = [made[0], *made[1]]
        torch.manual_seed(5)
        factors = [torch.randn(part.shape) for part in outputs]
        losses = [(part * factor.to(part)).sum() for part, factor in zip(outputs, factors, strict=True)]
        sum(losses[parts]).backward()  # pyright: ignore
        assert leaf.grad is not None
        found.append(leaf.grad.cpu())
    return found[0], found[1]


def made(tables=TABLES) -> Pair:
    return Pair(tables, lambda m: hr.optim.Adagrad(m, lr=0.1), QUICK)


def test_they_are_those_of_the_cpu_and_rows_take_their_step_as_well():
    torch.manual_seed(0)
    pair = made()
    for batch in (5, 3):
        expected, got = gradients(pair, weighted(features(batch)))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
        pair.step()
        pair.agree()


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_bags_may_have_more_ids_than_a_row_has_numbers(dim):
    torch.manual_seed(3)
    kinds = KINDS[:-1]  # those that are pooled
    pair = made([hr.Table("a", dim=dim, rows=9, features=kinds, combiner={kind: kind for kind in kinds})])
    given = {kind: lists(9, 20, 6) for kind in kinds[1:]} | {"sum": ids(9, 6, 16)}  # 16: a whole number of rows of 8
    expected, got = gradients(pair, weighted(given))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    pair.step()
    pair.agree()


@pytest.mark.parametrize("parts", [slice(0, 1), slice(1, None)])
def test_an_output_without_a_gradient_gives_none(parts):
    torch.manual_seed(1)
    expected, got = gradients(made(), weighted(features(4)), parts)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert expected.any()
    assert not expected.all()


def test_a_bag_whose_weights_sum_to_zero_gives_none():
    pair = made(TABLES[:1])
    ids_of = dict.fromkeys(KINDS, torch.tensor([[1, 2]]))
    block = IdBlock.from_ragged(ids_of, weights=dict.fromkeys(KINDS, torch.tensor([0.5, -0.5])))
    expected, got = gradients(pair, block)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    assert not got[2:4].any()


def test_weights_take_gradients_where_no_table_is_trained_and_in_eval():
    torch.manual_seed(1)
    pair = made([hr.Table("b", dim=5, rows=30, combiner="mean"), hr.Table("c", dim=5, rows=9, trainable=False)])
    pair.cpu.eval(), pair.gpu.eval()
    expected, got = gradients(pair, weighted({"b": lists(30, 3, 5), "c": ids(9, 5)}))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_asking_for_gradients_of_the_weights_alone_queues_none_for_rows():
    pair = made(TABLES[:1])
    block, leaf = with_leaf(weighted({kind: ids(9, 3, 2) for kind in KINDS}), DEVICE)
    torch.autograd.grad(pair.gpu(block)[0].sum(), leaf)
    assert pair.gpu.group.pending("a") == 0


def test_weights_may_change_between_backward_and_the_step_of_the_rows():
    torch.manual_seed(2)
    pair = made(TABLES[:1])
    block = weighted({kind: lists(9, 3, 4) for kind in KINDS})
    for _ in range(2):  # two calls are summed at the step, from the weights
        for module, device in ((pair.cpu, "cpu"), (pair.gpu, DEVICE)):
            mine, leaf = with_leaf(block, device)
            out = module(mine)
            (out.flat if device == "cpu" else out[0]).sum().backward()
            with torch.no_grad():
                leaf.fill_(9.0)
    pair.step()
    pair.agree()
