"""Cross layers against plain autograd; their kernels run on a card, or through the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hybridrec.ops.crosses.reference import Cross
from hybridrec.ops.crosses.reference import crosses as reference
from tests.gpu import DEVICE, needs_gpu

pytest.importorskip("triton", reason="the layers' kernels come with triton")

from hybridrec.ops.crosses.op import crosses, suits

pytestmark = needs_gpu

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def made(
    rows: int, width: int, ranks: Sequence[int | None], kind: torch.dtype = torch.float32
) -> tuple[Tensor, list[Cross]]:
    """Inputs and layers that want gradients."""
    draw = torch.Generator().manual_seed(rows + width)

    def leaf(*shape: int, dtype: torch.dtype = kind) -> Tensor:
        values = torch.randn(shape, generator=draw) / shape[-1] ** 0.5
        return values.to(DEVICE, dtype).requires_grad_()

    x0 = leaf(rows, width, dtype=torch.float32).detach().mul_(width**0.5).requires_grad_()
    return x0, [
        Cross(leaf(width, rank or width), leaf(width), None if rank is None else leaf(rank, width)) for rank in ranks
    ]


def wanted(x0: Tensor, layers: Sequence[Cross]) -> list[Tensor]:
    """All that want a gradient."""
    given = [x0, *(each for layer in layers for each in layer)]
    return [each for each in given if each is not None and each.requires_grad]


def results(run, x0: Tensor, layers: Sequence[Cross], upstream: Tensor | None = None) -> list[Tensor]:
    """The output, and the gradients of all that want one."""
    out = run(x0, layers)
    if upstream is None:
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad(out, wanted(x0, layers), upstream.to(out))]


def check(x0: Tensor, layers: Sequence[Cross], upstream: Tensor | None = None) -> None:
    kind = layers[0].up.dtype
    exact = [Cross(*(None if part is None else part.float() for part in layer)) for layer in layers]  # pyright: ignore
    ours, plain = crosses(x0, layers), reference(x0, exact)
    assert ours.dtype == kind
    if upstream is None:
        upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    grads = (torch.autograd.grad(out, wanted(x0, layers), upstream.to(out)) for out in (ours, plain))
    for one, other in zip((ours, *next(grads)), (plain, *next(grads)), strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=TOLERANCE[kind] * scale)


@pytest.mark.parametrize("rows", [0, 1, 140])
@pytest.mark.parametrize("ranks", [(None,), (16,), (16, 16, 16), (None, None), (16, None, 3)])
def test_layers_are_those_of_torch_with_their_gradients(rows, ranks):
    check(*made(rows, 80, ranks))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ranks", [(16, 16, 16), (None, None)])
def test_layers_of_another_type_multiply_in_it_and_x0_keeps_its_gradient_exact(kind, ranks):
    x0, layers = made(40, 48, ranks, kind)
    check(x0, layers)
    grads = results(crosses, x0, layers)[1:]
    assert [each.dtype for each in grads] == [each.dtype for each in wanted(x0, layers)]


@pytest.mark.parametrize(("rows", "width", "rank"), [(70, 16, 256), (33, 272, None)])
def test_factors_are_transposed_in_memory_where_matrix_units_like_it(rows, width, rank):
    check(*made(rows, width, (rank,)))


def test_a_width_that_is_no_multiple_of_anything_is_taken():
    check(*made(5, 7, (3, None)))


def test_columns_of_zeros_stay_zeros_and_get_none_but_zeros():
    x0, layers = made(20, 48, (16, 16))
    with torch.no_grad():
        x0[:, 41:] = 0
        for layer in layers:
            assert layer.down is not None
            layer.up[41:], layer.bias[41:], layer.down[:, 41:] = 0, 0, 0
    upstream = torch.randn(20, 48)
    upstream[:, 41:] = 0
    out, of_x0, *_ = results(crosses, x0, layers, upstream)
    assert not out[:, 41:].any()
    assert not of_x0[:, 41:].any()
    assert of_x0[:, :41].all()


@pytest.mark.parametrize("frozen", [(0,), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 6), (1, 2, 3, 4, 5, 6), (0, 3, 4, 5)])
@pytest.mark.parametrize("ranks", [(16, 16), (None, None)])
def test_what_is_frozen_gets_no_gradient_and_changes_none(frozen, ranks):
    x0, layers = made(20, 32, ranks)
    leaves = [x0, *(each for layer in layers for each in layer)]
    for at in frozen:
        if (leaf := leaves[at]) is not None:
            leaf.requires_grad_(False)
    check(x0, layers)


def test_x0_may_be_used_beside_the_layers():
    x0, layers = made(20, 32, (16,))

    def parallel(run):
        out = torch.cat([run(x0, layers), x0.square()], 1)
        return torch.autograd.grad(out.square().sum(), wanted(x0, layers))

    for ours, plain in zip(parallel(crosses), parallel(reference), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_inputs_and_gradients_may_be_parts_of_other_tensors():
    x0, layers = made(20, 32, (16, 16))
    wide = torch.cat([x0.detach(), torch.full((20, 8), torch.nan, device=DEVICE)], 1)[:, :32].requires_grad_()
    check(wide, layers, torch.randn(20, 64)[:, ::2])
    check(x0, layers, torch.ones(1, 1).expand(20, 32))


def test_a_graph_that_is_kept_gives_the_same_gradients_again():
    x0, layers = made(20, 32, (16, 16))
    out = crosses(x0, layers)
    one, two = (torch.autograd.grad(out.sum(), wanted(x0, layers), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, one, two))


def test_the_gradient_of_nan_is_torchs():
    x0, layers = made(5, 32, (16, 16))
    with torch.no_grad():
        x0[1, 3] = torch.nan
    for one, other in zip(results(crosses, x0, layers), results(reference, x0, layers), strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def test_results_repeat_bit_for_bit():
    given = made(300, 48, (16, 16))
    assert all(map(torch.equal, results(crosses, *given), results(crosses, *given)))


def test_no_layers_change_nothing():
    x0, _ = made(3, 16, ())
    assert crosses(x0, []) is x0


def test_other_types_and_compilers_are_for_torch():
    x0 = torch.zeros(1, 16, device=DEVICE)
    assert suits(x0, torch.float32)
    assert suits(x0, torch.bfloat16)
    assert not suits(x0, torch.float64)
    assert not suits(x0.bfloat16(), torch.bfloat16)
    answers = []
    torch.compile(lambda x: answers.append(suits(x, torch.float32)), backend="eager")(x0)
    assert answers == [False]
