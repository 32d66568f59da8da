"""Relu layers against plain autograd; their kernels run on a card, or through the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hybridrec.ops.dense_layers.reference import dense_layers as reference
from tests.gpu import DEVICE, needs_gpu

pytest.importorskip("triton", reason="the layers' kernels come with triton")

from hybridrec.ops.dense_layers.op import dense_layers

pytestmark = needs_gpu

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}


def made(
    widths: Sequence[int], rows: int, dtype: torch.dtype = torch.float32, biases: Sequence[bool] | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """Inputs, weights and biases that want gradients."""
    draw = torch.Generator().manual_seed(sum(widths) + rows)

    def leaf(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=draw, dtype=torch.float64) / shape[-1] ** 0.5
        return values.to(DEVICE, dtype).requires_grad_()

    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    there = [True] * len(pairs) if biases is None else biases
    return (
        leaf(rows, widths[0]),
        [leaf(*p) for p in pairs],
        [leaf(p[0]) if b else None for p, b in zip(pairs, there, strict=True)],
    )


def results(run, x, weights, biases, relu_last, upstream=None) -> list[Tensor]:
    """The output, and the gradients of all that want one."""
    leaves = [each for each in (x, *weights, *biases) if each is not None and each.requires_grad]
    out = run(x, weights, biases, relu_last)
    if upstream is None:
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out))]


def check(given, relu_last: bool, upstream: Tensor | None = None) -> None:
    x = given[0]
    for ours, plain in zip(
        results(dense_layers, *given, relu_last, upstream), results(reference, *given, relu_last, upstream), strict=True
    ):
        assert ours.dtype == plain.dtype
        assert ours.shape == plain.shape
        scale = max(1.0, float(plain.abs().max())) if plain.numel() else 1.0
        torch.testing.assert_close(ours, plain, rtol=0, atol=TOLERANCE[x.dtype] * scale)


@pytest.mark.parametrize("rows", [0, 1, 130])
@pytest.mark.parametrize("widths", [(48, 272, 32, 1), (16, 32, 16), (16, 1), (5, 7, 3), (3, 5, 1)])
@pytest.mark.parametrize("relu_last", [False, True])
def test_layers_are_those_of_torch_with_their_gradients(widths, rows, relu_last):
    check(made(widths, rows), relu_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_compute_in_themselves(dtype):
    check(made((16, 64, 32, 1), 40, dtype), relu_last=False)
    check(made((16, 64, 32), 40, dtype), relu_last=True)


def test_layers_may_have_no_bias():
    check(made((16, 32, 32, 1), 9, biases=[False, True, False]), relu_last=False)
    check(made((16, 32), 9, biases=[False]), relu_last=True)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (1, 4), (1, 2, 4, 5), (3, 6), (0, 1, 2, 3, 4, 5)])
def test_what_is_frozen_gets_no_gradient_and_changes_none(frozen):
    x, weights, biases = made((16, 32, 48, 1), 20)
    leaves = [x, *weights, *biases]
    for at in frozen:
        leaves[at].requires_grad_(False)
    check((x, weights, biases), relu_last=False)


def test_a_gradient_may_be_a_column_of_another_tensor():
    upstream = torch.randn(20, 3, dtype=torch.float64)
    check(made((16, 32, 1), 20), False, upstream[:, 1:2])
    check(made((16, 32, 16, 2), 20), False, upstream[:, ::2])
    check(made((16, 32), 20), True, torch.ones(1, 1, dtype=torch.float64).expand(20, 32))


def test_the_gradient_of_nan_is_torchs():
    x, weights, biases = made((16, 32, 1), 3)
    with torch.no_grad():
        x[1, 3] = torch.nan
    ours, plain = (results(run, x, weights, biases, False) for run in (dense_layers, reference))
    for one, other in zip(ours, plain, strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def test_results_repeat_bit_for_bit():
    given = made((48, 272, 32, 1), 300)
    one, two = (results(dense_layers, *given, False) for _ in range(2))
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("relu_last", [False, True])
def test_compiled_layers_are_the_same(relu_last):
    given = made((16, 32, 16, 1), 20)
    compiled = torch.compile(dense_layers, backend="aot_eager", fullgraph=True)
    ours, plain = (results(run, *given, relu_last) for run in (compiled, dense_layers))
    assert all(map(torch.equal, ours, plain))


def test_layers_compile_with_a_part_frozen():
    x, weights, biases = made((16, 32, 16), 20, biases=[True, False])
    x.requires_grad_(False)
    weights[0].requires_grad_(False)
    compiled = torch.compile(dense_layers, backend="aot_eager", fullgraph=True)
    ours, plain = (results(run, x, weights, biases, True) for run in (compiled, reference))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
