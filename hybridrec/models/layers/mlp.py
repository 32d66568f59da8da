"""MLP: linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
}


ALIGNED = 16  # columns: what the matrix units of GPUs like; other widths are several times slower


def aligned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """On a GPU, inputs [B, n] and weights [m, n] with columns of zeros up to a width that its matrix units like."""
    if not x.is_cuda:
        return x, weight
    missing = -x.shape[1] % ALIGNED
    return (pad(x, (0, missing)), pad(weight, (0, missing))) if missing else (x, weight.contiguous())


class MLP(nn.Sequential):
    """From [B, width] through hidden layers to [B, out], or to the last hidden layer where `out` is None.

    After each hidden layer come the activation and dropout. `self.out` is the width of the result. The input may come
    as several tensors that lie side by side, [B, m] and [B, width - m], without the cost of joining them.

    >>> import torch
    >>> mlp = MLP(8, (16, 4), out=1, dropout=0.1)
    >>> mlp(torch.zeros(3, 8)).shape, mlp.out
    (torch.Size([3, 1]), 1)
    >>> mlp(torch.zeros(3, 6), torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self,
        width: int,
        hidden: Sequence[int],
        out: int | None = None,
        *,
        dropout: float = 0.0,
        activation: str = "relu",
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}; valid are {', '.join(ACTIVATIONS)}")
        parts: list[nn.Module] = []
        for size in hidden:
            parts += [nn.Linear(width, size), ACTIVATIONS[activation]()]
            parts += [nn.Dropout(dropout)] if dropout else []
            width = size
        if out is not None:
            parts.append(nn.Linear(width, out))
        super().__init__(*parts)
        self.out = width if out is None else out

    def forward(self, *inputs: Tensor) -> Tensor:
        if not len(self):
            return torch.cat(inputs, 1)
        if len(inputs) == 1 and (not inputs[0].is_cuda or inputs[0].shape[1] % ALIGNED == 0):
            return super().forward(*inputs)
        first, *rest = self
        assert isinstance(first, nn.Linear)
        columns = first.weight.split([each.shape[1] for each in inputs], 1)
        x = linear(*aligned(inputs[0], columns[0]), first.bias)
        for each, weight in zip(inputs[1:], columns[1:], strict=True):
            x = x + linear(*aligned(each, weight))
        for layer in rest:
            x = layer(x)
        return x
