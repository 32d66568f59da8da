from __future__ import annotations

import pytest
import torch
from torch import nn

from hybridrec.models.layers import MLP
from hybridrec.models.layers.mlp import padded


def test_it_is_linear_layers_with_an_activation_between_them():
    mlp = MLP(3, (5, 4), out=2)
    x = torch.randn(6, 3)
    first, second, last = (part for part in mlp if isinstance(part, nn.Linear))
    assert torch.equal(mlp(x), last(second(first(x).relu()).relu()))
    assert mlp.out == 2


def test_without_out_it_ends_with_the_last_hidden_layer():
    mlp = MLP(3, (5,))
    assert mlp.out == 5
    assert (mlp(torch.randn(10, 3)) >= 0).all()


def test_without_hidden_layers_it_is_linear_or_nothing():
    assert [type(part) for part in MLP(3, (), out=1)] == [nn.Linear]
    x = torch.randn(2, 3)
    assert torch.equal(MLP(3, ())(x), x)


def test_dropout_acts_in_training_only():
    mlp = MLP(8, (64,), dropout=0.5)
    x = torch.ones(1, 8)
    assert not torch.equal(mlp(x), mlp(x))
    mlp.eval()
    assert torch.equal(mlp(x), mlp(x))


def test_an_unknown_activation_lists_the_known_ones():
    with pytest.raises(ValueError, match="'swish'; valid are relu, gelu"):
        MLP(3, (4,), activation="swish")


@pytest.mark.parametrize("hidden", [(5, 4), ()])
def test_tensors_side_by_side_are_as_one(hidden):
    mlp, x = MLP(6, hidden, out=2), torch.randn(3, 6)
    assert torch.allclose(mlp(x[:, :2], x[:, 2:5], x[:, 5:]), mlp(x), atol=1e-6)
    nothing = MLP(6, ())
    assert torch.equal(nothing(x[:, :2], x[:, 2:]), x)


@pytest.mark.parametrize("parts", [1, 2])
def test_columns_of_zeros_behind_the_input_change_nothing(parts):
    mlp, x = MLP(6, (5,), out=2), torch.randn(3, 6)
    mine = torch.cat([x, torch.zeros(3, 2)], 1).split([8 // parts] * parts, 1)
    assert torch.allclose(mlp(*mine, zeros=2), mlp(x), atol=1e-6)
    mlp(*mine, zeros=2).sum().backward()
    assert mlp[0].weight.grad.shape == (5, 6)
    with pytest.raises(RuntimeError):
        mlp(*mine)


def test_the_gradient_of_a_padded_line_lies_as_the_line_does():
    for shape in ((1, 8), (3, 8)):
        weight = torch.ones(shape, requires_grad=True)
        (grad,) = torch.autograd.grad(padded(weight, 0, 8), weight, torch.ones(shape[0], 16))
        assert grad.stride() == (8, 1)
