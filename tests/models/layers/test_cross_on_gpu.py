"""Cross layers as they run on a GPU: on a card, or their operator on the CPU through Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from hybridrec.models.dcnv2 import DCNv2Net
from hybridrec.models.layers import MLP, CrossLayer
from hybridrec.models.layers.cross import crossed, together
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytest.importorskip("triton", reason="the layers' kernels come with triton")
pytestmark = needs_gpu


def layers_of(width: int, *ranks: int | None) -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(CrossLayer(width, rank) for rank in ranks).to(DEVICE)


def plain(x0: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    x = x0
    for layer in layers:
        x = layer(x0, x)
    return x


def on_gpu(x0: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    """What the layers do with inputs on a GPU, wherever they are, without the columns of zeros."""
    out = together(pad(x0, (0, -x0.shape[1] % 16)), layers)
    assert out is not None
    assert not out[:, x0.shape[1] :].any()
    return out[:, : x0.shape[1]]


def gradients(run: Callable[..., Tensor], x0: Tensor, layers: nn.ModuleList) -> list[Tensor]:
    """The output, and the gradients of inputs and parameters."""
    leaf = x0.detach().clone().requires_grad_()
    out = run(leaf, list(layers))
    leaves = [leaf, *layers.parameters()]
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


@pytest.mark.parametrize(("width", "ranks"), [(21, (5, 16, 3)), (32, (None, None)), (7, (None, 2))])
def test_they_give_what_layers_one_by_one_give_at_any_width(width, ranks):
    layers, x0 = layers_of(width, *ranks), torch.randn(10, width, device=DEVICE)
    for ours, expected in zip(gradients(on_gpu, x0, layers), gradients(plain, x0, layers), strict=True):
        assert ours.shape == expected.shape
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_autocast_multiplies_in_its_type_and_parameters_keep_theirs():
    layers, x0 = layers_of(20, 16, 16, None), torch.randn(30, 20, device=DEVICE)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        ours, expected = gradients(on_gpu, x0, layers), gradients(plain, x0, layers)
    assert ours[0].dtype == torch.bfloat16
    assert [each.dtype for each in ours[1:]] == [torch.float32] * (len(ours) - 1)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=0.03 * float(other.abs().max()), rtol=0)


def test_gradients_of_parameters_lie_in_memory_as_these_do():
    layers = layers_of(32, 16, None)
    on_gpu(torch.randn(4, 32, device=DEVICE), list(layers)).sum().backward()
    assert all(each.grad is not None and each.grad.is_contiguous() for each in layers.parameters())


def test_layers_that_somebody_looks_at_or_has_changed_are_called_one_by_one():
    x0 = torch.zeros(2, 16, device=DEVICE)
    for change in (
        lambda layers: layers[0].register_forward_hook(lambda *_: None),
        lambda layers: layers[1].weight[1].register_full_backward_hook(lambda *_: None),
        lambda layers: setattr(layers[0], "weight", nn.Linear(16, 16, bias=False)),
        lambda layers: nn.utils.parametrizations.weight_norm(layers[1].weight[0]),
        lambda layers: layers.append(nn.Bilinear(16, 16, 16)),
    ):
        layers = layers_of(16, None, 4)
        assert together(x0, list(layers)) is not None
        change(layers)
        assert together(x0, list(layers)) is None


def test_a_type_without_kernels_is_for_torch():
    assert together(torch.zeros(2, 16, device=DEVICE, dtype=torch.float64), list(layers_of(16, 4).double())) is None


def test_compilers_get_them_one_by_one():
    layers, x0 = list(layers_of(16, 4, None)), torch.randn(3, 16, device=DEVICE)

    def run(x0: Tensor) -> Tensor:
        return plain(x0, layers) if (out := together(x0, layers)) is None else out.new_zeros(())

    torch.testing.assert_close(torch.compile(run, backend="aot_eager", fullgraph=True)(x0), plain(x0, layers))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_whole_net_has_the_same_logits_and_gradients_by_them(stacked, autocast, monkeypatch):
    torch.manual_seed(0)
    cross, deep = [CrossLayer(23, 5) for _ in range(2)], MLP(23, (8,))
    net = DCNv2Net(20, 3, 1, cross, deep, stacked).eval().to(DEVICE)
    vectors, dense = torch.randn(30, 20, device=DEVICE, requires_grad=True), torch.randn(30, 3, device=DEVICE)
    found = []
    for run in (together, plain):
        monkeypatch.setattr("hybridrec.models.dcnv2.crossed", lambda x0, layers, run=run: run(x0, list(layers)))
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=autocast):
            logits = net(vectors, dense)
        found.append([logits, *torch.autograd.grad(logits.float().square().sum(), [vectors, *net.parameters()])])
    for ours, expected in zip(*found, strict=True):
        assert ours.dtype == expected.dtype
        rounding = (0.03 if autocast else 1e-5) * float(expected.detach().abs().max())
        torch.testing.assert_close(ours, expected, atol=rounding, rtol=0)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_head_that_is_a_layer_of_the_deep_ones_gives_what_it_gives_by_itself(outputs, monkeypatch):
    torch.manual_seed(0)
    net = DCNv2Net(20, 3, outputs, [], MLP(23, (20, 8)), stacked=True).to(DEVICE)
    x = torch.randn(30, 23, device=DEVICE, requires_grad=True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", True)  # as the net sees it
        ours = net._headed(pad(x, (0, 9)))
    expected = net.head(nn.Sequential.forward(net.deep, x))
    assert ours.shape == expected.shape
    leaves = [x, *net.parameters()]
    found = [[out, *torch.autograd.grad(out.square().sum(), leaves)] for out in (ours, expected)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no CUDA graphs")
@pytest.mark.parametrize("autocast", [False, True])
def test_a_graph_captures_both_ways(autocast):
    layers, x0 = layers_of(48, 16, 16), torch.randn(64, 48, device=DEVICE, requires_grad=True)

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            out = crossed(x0, layers)
        x0.grad = None
        out.float().square().sum().backward()
        assert x0.grad is not None
        return x0.grad

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = step().clone()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
