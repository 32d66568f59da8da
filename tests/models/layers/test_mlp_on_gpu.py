"""An MLP as it runs on a GPU: on a card, or its operator on the CPU through Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hybridrec.models.layers import MLP
from hybridrec.models.layers.mlp import behind_zeros, relu_layers
from hybridrec.models.mmoe import MMoENet
from hybridrec.ops.room import join, mark, with_room
from tests.gpu import DEVICE, needs_gpu

pytest.importorskip("triton", reason="the layers' kernels come with triton")
pytestmark = needs_gpu


def mlp_of(*given: Any, **options: Any) -> MLP:
    torch.manual_seed(0)
    return MLP(*given, **options).to(DEVICE)


def plain(mlp: MLP, *inputs: Tensor) -> Tensor:
    return nn.Sequential.forward(mlp, torch.cat(inputs, 1))


def on_gpu(mlp: MLP, *inputs: Tensor) -> Tensor:
    """What the MLP does with inputs on a GPU, wherever they are."""
    x = torch.cat(inputs, 1)
    return mlp._on_gpu(torch.nn.functional.pad(x, (0, -x.shape[1] % 16)))


def gradients(run: Callable[..., Tensor], mlp: MLP, *inputs: Tensor) -> list[Tensor]:
    """The output, and the gradients of inputs and parameters."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    out = run(mlp, *leaves)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), [*leaves, *mlp.parameters()])]


@pytest.mark.parametrize(
    ("width", "hidden", "options"),
    [
        (21, (40, 9), {"out": 1}),
        (16, (16,), {"out": 5}),
        (7, (5,), {}),
        (7, (), {"out": 1}),
        (7, (6,), {"activation": "tanh"}),
    ],
)
def test_it_gives_what_its_layers_give_at_any_width(width, hidden, options):
    mlp = mlp_of(width, hidden, **options)
    x = torch.randn(10, width, device=DEVICE)
    for ours, expected in zip(gradients(on_gpu, mlp, x), gradients(plain, mlp, x), strict=True):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_autocast_computes_in_its_type_and_parameters_keep_theirs():
    mlp, x = mlp_of(20, (16, 48), out=1), torch.randn(30, 20, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        ours, expected = gradients(on_gpu, mlp, x), gradients(plain, mlp, x)
    assert [each.dtype for each in ours] == [each.dtype for each in expected]
    assert ours[0].dtype == torch.bfloat16
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=0.03 * float(other.abs().max()), rtol=0)


def test_numbers_are_read_where_the_vectors_have_room_for_them():
    mlp, numbers = mlp_of(23, (16,), out=1), torch.randn(4, 3, device=DEVICE)
    vectors = mark(with_room(4, 20, 32, DEVICE).normal_().requires_grad_(), 32)
    joined = join(vectors, numbers)
    assert joined is not None
    assert joined.data_ptr() == vectors.data_ptr()
    torch.testing.assert_close(mlp._on_gpu(joined), plain(mlp, vectors, numbers), atol=1e-6, rtol=1e-5)


def test_layers_that_somebody_looks_at_are_called_one_by_one():
    mlp, seen = mlp_of(8, (4, 4), out=1), []
    assert len(relu_layers(mlp)) == 3
    mlp[2].register_forward_hook(lambda *given: seen.append(1))
    assert relu_layers(mlp) == []
    on_gpu(mlp, torch.zeros(2, 8, device=DEVICE))
    assert seen == [1]


def test_dropout_is_for_torch_in_training_and_nothing_after_it():
    mlp = mlp_of(8, (4,), out=1, dropout=0.5)
    assert relu_layers(mlp) == []
    assert len(relu_layers(mlp.eval())) == 2


def test_it_compiles_whole():
    mlp, x = mlp_of(21, (40, 9), out=1), torch.randn(10, 21, device=DEVICE)
    compiled = torch.compile(on_gpu, backend="aot_eager", fullgraph=True)
    for ours, expected in zip(gradients(compiled, mlp, x), gradients(plain, mlp, x), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_a_layer_that_somebody_looks_at_sees_its_own_columns():
    layer, seen = nn.Linear(3, 2).to(DEVICE), []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    x = torch.randn(4, 3, device=DEVICE)
    found = behind_zeros(torch.nn.functional.pad(x, (0, 5)), layer)
    assert seen == [(4, 3)]
    torch.testing.assert_close(found, torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("expert", [(12,), ()])
def test_experts_and_gates_share_a_matrix_with_zeros_behind(expert, monkeypatch):
    torch.manual_seed(0)
    net = MMoENet(20, 3, 2, [MLP(23, expert) for _ in range(3)], (8,), 0.0).to(DEVICE)
    vectors, dense = torch.randn(30, 20, device=DEVICE, requires_grad=True), torch.randn(30, 3, device=DEVICE)
    net(vectors, dense)
    net.eval()
    found = []
    for on_gpu in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "is_cuda", on_gpu)  # as the layers see it
            logits = net(vectors, dense)
        found.append([logits, *torch.autograd.grad(logits.square().sum(), [vectors, *net.parameters()])])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
