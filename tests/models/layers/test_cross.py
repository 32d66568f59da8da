from __future__ import annotations

import pytest
import torch
from torch import nn

from hybridrec.models.layers import CrossLayer


def test_a_full_layer_is_the_formula_of_the_paper():
    layer = CrossLayer(4)
    assert isinstance(layer.weight, nn.Linear)
    x0, x = torch.randn(2, 5, 4)
    for row in range(5):
        naive = x0[row] * (layer.weight.weight @ x[row] + layer.weight.bias) + x[row]
        assert torch.allclose(layer(x0, x)[row], naive, atol=1e-6)


def test_a_layer_of_low_rank_is_a_full_one_with_the_product_of_its_matrices():
    low, full = CrossLayer(6, rank=2), CrossLayer(6)
    assert isinstance(low.weight, nn.Sequential)
    assert isinstance(full.weight, nn.Linear)
    down, up = low.weight
    with torch.no_grad():
        full.weight.weight.copy_(up.weight @ down.weight)
        full.weight.bias.copy_(up.bias)
    x0, x = torch.randn(2, 5, 6)
    assert torch.allclose(low(x0, x), full(x0, x), atol=1e-6)


def test_two_layers_reach_degree_three():
    layer = CrossLayer(1)
    with torch.no_grad():
        for part in layer.parameters():
            part.fill_(1.0)
    x0 = torch.tensor([[2.0]])
    x1 = layer(x0, x0)
    assert x1.item() == 2 * (2 + 1) + 2
    assert layer(x0, x1).item() == 2 * (8 + 1) + 8


@pytest.mark.parametrize("rank", [0, 7])
def test_a_rank_beyond_the_width_is_refused(rank):
    with pytest.raises(ValueError, match="from 1 to the width, 6"):
        CrossLayer(6, rank=rank)


@pytest.mark.parametrize("rank", [None, 2])
def test_columns_of_zeros_behind_the_inputs_stay_zeros_and_change_nothing(rank):
    layer = CrossLayer(6, rank)
    x0, x = torch.randn(2, 5, 6)
    wide = layer(*(nn.functional.pad(each, (0, 10)) for each in (x0, x)))
    torch.testing.assert_close(wide[:, :6], layer(x0, x))
    assert not wide[:, 6:].any()
    grads = [torch.autograd.grad(out.square().sum(), list(layer.parameters())) for out in (wide, layer(x0, x))]
    torch.testing.assert_close(*grads)
