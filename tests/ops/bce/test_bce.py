"""The loss and its gradient against torch's, on a card or through Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.gpu import DEVICE, needs_gpu

pytest.importorskip("triton", reason="the kernels come with triton")

from hybridrec.ops.bce import op, reference, triton

pytestmark = needs_gpu

SHAPES = [(5,), (2500,), (1024,), (700, 3), (4, 1)]


def both(run: Callable[..., Tensor], x: Tensor, *given: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of twice the loss."""
    leaf = x.clone().requires_grad_()
    loss = run(leaf, *given)
    (2 * loss).backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def logits(*shape: int) -> Tensor:
    torch.manual_seed(len(shape))
    return 8 * torch.randn(shape, device=DEVICE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_loss_and_gradient_are_those_of_torch(shape, weighted, on_device):
    x, y = logits(*shape), torch.rand(shape, device=DEVICE)
    rows = torch.rand(shape[0], device=DEVICE) if weighted else None
    columns = torch.rand(shape[1], device=DEVICE) if weighted and len(shape) == 2 else None
    total = torch.tensor(37.0, device=DEVICE) if on_device else 37.0
    assert op.suits(x, y, rows, columns)
    for ours, expected in zip(
        both(op.bce, x, y, rows, columns, total), both(reference.bce, x, y, rows, columns, total), strict=True
    ):
        torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-5)


def test_losses_of_sure_logits_are_small_and_not_lost():
    x, y = torch.tensor([18.0, -18.0, 60.0], device=DEVICE), torch.tensor([1.0, 0.0, 1.0], device=DEVICE)
    ours, expected = (run(x, y, None, None, 1.0) for run in (op.bce, reference.bce))
    assert float(expected) > 0
    torch.testing.assert_close(ours, expected, atol=0, rtol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_give_what_torch_gives(bad):
    for label in (0.0, 1.0):
        x, y = torch.tensor([1.0, bad], device=DEVICE), torch.tensor([0.0, label], device=DEVICE)
        ours, expected = (both(run, x, y, None, None, 2.0) for run in (op.bce, reference.bce))
        torch.testing.assert_close(ours, expected, equal_nan=True)


def test_nothing_is_left_of_a_loss_without_weight():
    x, y = logits(30), torch.rand(30, device=DEVICE)
    loss, grad = both(op.bce, x, y, torch.zeros(30, device=DEVICE), None, torch.inf)
    assert float(loss) == 0
    assert not grad.any()


def test_results_repeat_bit_for_bit_and_read_nothing_behind_the_numbers(monkeypatch):
    monkeypatch.setattr(triton, "BLOCK", 16)  # so that sums are of more than a program
    room = torch.full((2, 96), torch.nan, device=DEVICE)
    room[:, :70] = torch.rand(2, 70, device=DEVICE)
    x, y = room[0, :70], room[1, :70]
    first, second = (both(op.bce, x, y, None, None, 70.0) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    torch.testing.assert_close(first[0], reference.bce(x, y, None, None, 70.0))


def test_a_batch_without_rows_has_a_loss_of_zero():
    loss, grad = both(op.bce, logits(0), torch.zeros(0, device=DEVICE), None, None, 1.0)
    assert float(loss) == 0
    assert grad.shape == (0,)


@pytest.mark.parametrize("spoil", [torch.Tensor.double, lambda y: y.requires_grad_(), lambda y: y.repeat(2)[::2]])
def test_labels_of_another_kind_are_for_torch(spoil):
    assert not op.suits(logits(30), spoil(torch.rand(30, device=DEVICE)), None, None)
