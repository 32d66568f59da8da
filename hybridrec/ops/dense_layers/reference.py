"""Relu layers by plain PyTorch: what autograd gives for them is the rule."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import linear


def dense_layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], relu_last: bool) -> Tensor:
    """Inputs [B, n] through linear layers with relu between them, and behind the last if `relu_last`.

    >>> import torch
    >>> dense_layers(torch.ones(1, 2), [torch.tensor([[1.0, 2.0]])], [torch.tensor([-5.0])], relu_last=True)
    tensor([[0.]])
    """
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = linear(x, weight, bias)
        if relu_last or place < len(weights) - 1:
            x = x.relu()
    return x
