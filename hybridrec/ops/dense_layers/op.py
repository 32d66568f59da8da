"""Relu layers as one torch operator, with their gradients by hand.

Widths should be multiples of 16, but for a last one of 1. The caller pads and casts, and autograd undoes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from hybridrec.ops.dense_layers import triton as kernels
from hybridrec.ops.room import aligned_width

WIDE = 256  # outputs from which on a transposed gradient is worth its pass


def dense_layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], relu_last: bool) -> Tensor:
    """Inputs [B, n] through linear layers [m, n] with relu between them, and behind the last if `relu_last`.

    Weights and biases are of one type, in which all is computed; x may be of another. The same numbers as
    `reference.dense_layers` within float order, bit for bit the same when repeated; differentiable once.
    """
    given = [x.new_empty(0) if bias is None else bias for bias in biases]  # operators take lists of tensors alone
    if torch.compiler.is_compiling():
        return torch.ops.hybridrec.dense_layers(x.to(weights[0].dtype), list(weights), given, relu_last)[-1]
    return _DenseLayers.apply(x, relu_last, len(weights), *weights, *given)  # pyright: ignore[reportReturnType]


def _forward(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], relu_last: bool) -> list[Tensor]:
    """What each layer gives; bias and relu are part of the product where the library has that."""
    outs = []
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if not (relu_last or place < len(weights) - 1):
            x = linear(x, weight, bias if len(bias) else None)
        elif not len(bias):
            x = linear(x, weight).relu_()
        else:
            x = torch._addmm_activation(bias, x, weight.t())  # pyright: ignore[reportPrivateImportUsage] (no other)
        outs.append(x)
    return outs


def _backward(
    grad: Tensor,
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    out: Tensor | None,
    wanted: Sequence[bool],
    lowest: int,
    x_kind: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of weights that are wanted, of x if it is, and last the sums, which have those of biases.

    `inputs` are those of each layer, `out` what the last gave if relu is behind it; below layer `lowest` nothing is
    wanted; `x_kind` is the type of the gradient of x, None where it is not wanted.
    """
    work = _Backward(grad, inputs, weights, wanted)
    below = work.down(grad, out, lowest)
    of_x = [] if x_kind is None else [product_of_type(below, weights[0], x_kind)]
    total = work.sums.total().to(grad.dtype)
    return [*(work.found[at] for at in sorted(work.found)), *of_x, total]


def product_of_type(dz: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    """dz [B, m] times weight [m, n] as numbers of a type, with no pass of its own for that on a GPU."""
    weight_t = weight.t().contiguous()
    if dz.is_cuda and dz.dtype != kind == torch.float32:
        return torch.mm(dz, weight_t.t(), out_dtype=kind)
    return linear(dz, weight_t).to(kind)


def _places(weights: Sequence[Tensor], relu_last: bool) -> list[int]:
    """Where each layer's sums begin: those of its bias. A layer of one output has those of its weights before."""
    ends = list(accumulate((weight.shape[0] for weight in weights), initial=0))
    return [*ends[:-2], ends[-2] + weights[-1].shape[1], 0] if _one_output(weights, relu_last) else ends


def _one_output(weights: Sequence[Tensor], relu_last: bool) -> bool:
    """Whether the last layer has one output and another layer below: its gradients need no product."""
    return len(weights) > 1 and weights[-1].shape[0] == 1 and not relu_last


class _Backward:
    """The way down through the layers."""

    def __init__(self, grad: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], wanted: Sequence[bool]):
        self.inputs, self.weights, self.wanted = inputs, weights, wanted
        self.transposes = grad.dtype == torch.float32  # TF32 wants it so
        self.found: dict[int, Tensor] = {}

    def down(self, grad: Tensor, out: Tensor | None, lowest: int) -> Tensor:
        """The gradient before the relu of the lowest layer; those of weights are found on the way."""
        self.places = _places(self.weights, out is not None)
        self.sums = kernels.Sums(grad, self.places[-2] + self.weights[-1].shape[0])
        at = len(self.weights) - 1
        if _one_output(self.weights, out is not None):
            at -= 1
            room = self._room(at, grad)
            head = kernels.Head(self.weights[-1].flatten(), self.places[at + 1] - self.weights[-1].shape[1])
            dz = kernels.masked(grad, self.inputs[-1], self.sums, self.places[at], room, head)
        else:
            room = self._room(at, grad)
            dz = kernels.masked(grad.contiguous(), out, self.sums, self.places[at], room)
        self._product(at, dz, room)
        while at > lowest:
            weight_t, at = self.weights[at].t().contiguous(), at - 1
            room = self._room(at, dz)
            dz = kernels.masked(linear(dz, weight_t), self.inputs[at + 1], self.sums, self.places[at], room)
            self._product(at, dz, room)
        return dz

    def _room(self, at: int, like: Tensor) -> Tensor | None:
        """Room for the transposed gradient of a layer [m, B], if there is use for it."""
        width, rows = self.weights[at].shape[0], len(like)
        if not self.transposes or not self.wanted[at] or width < WIDE:
            return None
        return like.new_empty(width, aligned_width(rows))[:, :rows]

    def _product(self, at: int, dz: Tensor, dz_t: Tensor | None) -> None:
        if self.wanted[at]:
            self.found[at] = (dz.t() if dz_t is None else dz_t) @ self.inputs[at]


class _DenseLayers(torch.autograd.Function):
    """The layers for tensors that are there, without torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, relu_last: bool, count: int, *given: Tensor) -> Tensor:
        weights, biases = given[:count], given[count:]
        inner, ctx.x_kind = x.to(weights[0].dtype), x.dtype
        outs = _forward(inner, weights, biases, relu_last)
        _save(ctx, inner, weights, outs, relu_last)
        return outs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        wanted = needs[0], needs[3 : 3 + ctx.count], needs[3 + ctx.count :]
        of_weights, of_biases, of_x = _gradients(ctx, _backward, grad, *wanted)
        return of_x, None, None, *of_weights, *of_biases


def _save(ctx: Any, x: Tensor, weights: Sequence[Any], outs: Sequence[Tensor], relu_last: bool) -> None:
    ctx.relu_last, ctx.count = relu_last, len(weights)
    ctx.save_for_backward(*weights, x, *(outs if relu_last else outs[:-1]))


def _gradients(
    ctx: Any, run: Any, grad: Tensor, x: bool, weights: Sequence[bool], biases: Sequence[bool]
) -> tuple[list[Tensor | None], list[Tensor | None], Tensor | None]:
    """Those of weights, biases and x, None where one is not wanted."""
    count = ctx.count
    there, inputs = ctx.saved_tensors[:count], ctx.saved_tensors[count : 2 * count]
    out = ctx.saved_tensors[-1] if ctx.relu_last else None
    needed = [x or any(weights[: at + 1]) or any(biases[: at + 1]) for at in range(count)]
    x_kind = ctx.x_kind if x else None
    *found, total = run(grad, inputs, there, out, list(weights), needed.index(True), x_kind)
    places, each = _places(there, ctx.relu_last), iter(found)
    summed = _one_output(there, ctx.relu_last)  # whose weights have their gradient among the sums
    of_weights = [next(each) if want else None for want in (weights[:-1] if summed else weights)]
    if summed:
        of_weights.append(total[places[-2] - there[-1].shape[1] : places[-2]][None] if weights[-1] else None)
    ends = zip(biases, places, there, strict=False)
    of_biases = [total[at : at + weight.shape[0]] if want else None for want, at, weight in ends]
    return of_weights, of_biases, next(each, None)


operator: Any = torch.library.custom_op("hybridrec::dense_layers", _forward, mutates_args=())
operator_backward: Any = torch.library.custom_op("hybridrec::dense_layers_backward", _backward, mutates_args=())


@operator.register_fake
def _(x, weights, biases, relu_last):
    return [x.new_empty(x.shape[0], weight.shape[0]) for weight in weights]


@operator_backward.register_fake
def _(grad, inputs, weights, out, wanted, lowest, x_kind):
    made = weights[:-1] if _one_output(weights, out is not None) else weights
    of_weights = [torch.empty_like(weight) for weight, want in zip(made, wanted, strict=False) if want]
    of_x = [] if x_kind is None else [torch.empty_like(inputs[0], dtype=x_kind)]
    columns = _places(weights, out is not None)[-2] + weights[-1].shape[0]
    return [*of_weights, *of_x, grad.new_empty(columns)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, _, relu_last = inputs
    ctx.x_kind = x.dtype
    _save(ctx, x, weights, output, relu_last)


def _traced_backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    x, *lists, _ = ctx.needs_input_grad
    weights, biases = ([each] * ctx.count if isinstance(each, bool) else each for each in lists)  # one for all, or each
    run = torch.ops.hybridrec.dense_layers_backward
    of_weights, of_biases, of_x = _gradients(ctx, run, grads[-1], x, weights, biases)
    return of_x, of_weights, of_biases, None


operator.register_autograd(_traced_backward, setup_context=_setup)
