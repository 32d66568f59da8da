"""MLP: linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
}


class MLP(nn.Sequential):
    """From [B, width] through hidden layers to [B, out], or to the last hidden layer where `out` is None.

    After each hidden layer come the activation and dropout. `self.out` is the width of the result.

    >>> import torch
    >>> mlp = MLP(8, (16, 4), out=1, dropout=0.1)
    >>> mlp(torch.zeros(3, 8)).shape, mlp.out
    (torch.Size([3, 1]), 1)
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
