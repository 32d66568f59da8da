"""MLP: linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from hybridrec.models.layers.beside import beside
from hybridrec.ops.room import aligned_width

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
}


class MLP(nn.Sequential):
    """From [B, width] through hidden layers to [B, out], or to the last hidden layer where `out` is None.

    After each hidden layer come the activation and dropout. `self.out` is the width of the result. The input may come
    as several tensors that lie side by side, [B, m] and [B, width - m], without the cost of joining them. Of
    their columns the last `zeros` may be none of the width, but zeros.

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
        whole = isinstance(hidden, Sequence) and all(isinstance(size, int) and size >= 1 for size in hidden)
        if not whole or isinstance(hidden, str):
            raise ValueError(f"hidden layers are {hidden!r}; they must be a list of widths from 1 on, such as [64, 32]")
        parts: list[nn.Module] = []
        for size in hidden:
            parts += [nn.Linear(width, size), ACTIVATIONS[activation]()]
            parts += [nn.Dropout(dropout)] if dropout else []
            width = size
        if out is not None:
            parts.append(nn.Linear(width, out))
        super().__init__(*parts)
        self.out = width if out is None else out

    def forward(self, *inputs: Tensor, zeros: int = 0) -> Tensor:
        if not len(self):
            return torch.cat(inputs, 1)
        if inputs[0].is_cuda:
            return self._on_gpu(beside(*inputs))
        if len(inputs) == 1 and not zeros:
            return super().forward(*inputs)
        first = self[0]
        assert isinstance(first, nn.Linear)
        columns = padded(first.weight, 0, zeros).split([each.shape[1] for each in inputs], 1)
        x = linear(inputs[0], columns[0], first.bias)
        for each, weight in zip(inputs[1:], columns[1:], strict=True):
            x = torch.addmm(x, each, weight.t())
        return self._rest(x)

    def _on_gpu(self, x: Tensor) -> Tensor:
        """The same for inputs that may have columns of zeros behind their own."""
        linears = relu_layers(self)
        if linears:
            return together(x, linears, relu_last=not isinstance(self[-1], nn.Linear))
        first = self[0]
        assert isinstance(first, nn.Linear)
        return self._rest(behind_zeros(x, first))

    def _rest(self, x: Tensor) -> Tensor:
        """What the layers after the first make of its result."""
        for layer in list(self)[1:]:
            x = layer(x)
        return x


def together(x: Tensor, linears: Sequence[nn.Linear], relu_last: bool) -> Tensor:
    """Linear layers with relu between them as one operator, their widths as matrix units like them.

    x [B, n] may have columns of zeros behind those that the first layer knows. Under autocast all is of its type.
    """
    from hybridrec.ops.dense_layers.op import dense_layers  # which needs Triton

    device = x.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    weights, biases, width = [], [], x.shape[1]
    for layer in linears:
        missing = 0 if layer.out_features == 1 else aligned_width(layer.out_features) - layer.out_features
        weights.append(padded(layer.weight.to(kind), missing, width - layer.in_features))
        biases.append(None if layer.bias is None else padded(layer.bias.to(kind), missing))
        width = layer.out_features + missing
    out = dense_layers(x, weights, biases, relu_last)
    return out if width == linears[-1].out_features else out[:, : linears[-1].out_features]


def behind_zeros(x: Tensor, layer: nn.Module) -> Tensor:
    """What a linear layer makes of x [B, n], which may have columns of zeros behind those that the layer knows.

    >>> layer = nn.Linear(2, 1)
    >>> torch.equal(behind_zeros(torch.tensor([[1.0, 2.0, 0.0]]), layer), layer(torch.tensor([[1.0, 2.0]])))
    True
    """
    assert isinstance(layer, nn.Linear), "columns of zeros are for linear layers"
    zeros = x.shape[1] - layer.in_features
    if zeros and watched(layer):
        return layer(x[:, : layer.in_features])
    return linear(x, padded(layer.weight, 0, zeros), layer.bias) if zeros else layer(x)


def relu_layers(mlp: nn.Sequential) -> list[nn.Linear]:
    """The linear layers, where relu alone acts between them and nobody looks at what a layer gives; else none.

    >>> [len(relu_layers(MLP(8, (4, 2), **kind))) for kind in ({}, {"activation": "tanh"}, {"dropout": 0.1})]
    [2, 0, 0]
    """
    linears: list[nn.Linear] = []
    wanted: type[nn.Module] = nn.Linear
    for each in mlp:
        if watched(each):
            return []
        if isinstance(each, nn.Dropout) and (each.p == 0 or not each.training):
            continue
        if type(each) is not wanted:
            return []
        if isinstance(each, nn.Linear):
            linears.append(each)
        wanted = nn.ReLU if wanted is nn.Linear else nn.Linear
    return linears


def watched(module: nn.Module) -> bool:
    """Whether somebody has a hook on it, and so must see it called by itself."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def padded(values: Tensor, *missing: int) -> Tensor:
    """Zeros behind each dimension in turn, as many as are missing.

    >>> padded(torch.ones(1, 2), 0, 1)
    tensor([[1., 1., 0.]])
    """
    if not any(missing):
        return values
    if values.dim() == 2 and len(values) == 1 and not missing[0]:
        return padded(values.flatten(), missing[1])[None]  # the gradient of a single line would keep the zeros' stride
    behind = [each for many in reversed(missing) for each in (0, many)]
    return pad(values, behind) if torch.compiler.is_compiling() else _Padded.apply(values, behind)  # pyright: ignore


class _Padded(torch.autograd.Function):
    """Zeros behind, with a gradient as parameters want it: torch cuts it by a copy, and lays it out by another."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, behind: list[int]) -> Tensor:
        ctx.shape = values.shape
        return pad(values, behind)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[tuple(map(slice, ctx.shape))].contiguous(), None
