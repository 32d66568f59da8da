"""Cross layers as one autograd function, with their gradients by hand.

Widths should be multiples of 16. The caller pads and casts, and autograd undoes that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from hybridrec.ops.crosses import triton as kernels
from hybridrec.ops.crosses.reference import Cross

KINDS = (torch.float32, torch.bfloat16, torch.float16)
WIDE = 256  # lines from which on a transposed factor is worth its pass


def suits(x0: Tensor, kind: torch.dtype) -> bool:
    """Whether inputs of x0's type and layers of this one are for `crosses`; compilers and others are for torch."""
    return x0.dtype == torch.float32 and kind in KINDS and not torch.compiler.is_compiling()


def crosses(x0: Tensor, layers: Sequence[Cross]) -> Tensor:
    """x0 [B, n] through cross layers: each gives x0 * (W x + b) + x.

    x0 is float32; the layers' numbers are of one type, in which they multiply, and which the result has. The same
    numbers as `reference.crosses` within float order, bit for bit the same when repeated; differentiable once.
    """
    return _Crosses.apply(x0, *chain.from_iterable(layers)) if layers else x0  # pyright: ignore[reportReturnType]


class _Crosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x0: Tensor, *given: Any) -> Tensor:
        layers, x0 = _layers(given), x0.contiguous()
        kind = layers[0].up.dtype
        xs, middles, products = [x0.to(kind)], [], []
        for up, bias, down in layers:
            middles.append(xs[-1] if down is None else linear(xs[-1], down))
            products.append(linear(middles[-1], up, bias))
            # In half precision, x as float32 would be more to read and write than all products so far.
            begin = (xs[-1], products[-1:]) if kind == torch.float32 else (x0, products)
            xs.append(kernels.crossed(x0, *begin, kind))
        ctx.save_for_backward(x0, *given, *xs[:-1], *middles, *products)
        ctx.count = len(layers)
        return xs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x0, *rest = ctx.saved_tensors
        count, needs = ctx.count, ctx.needs_input_grad
        xs, middles, products = (rest[at * count : (at + 1) * count] for at in (3, 4, 5))
        wanted = [Wanted(*needs[at : at + 3]) for at in range(1, len(needs), 3)]
        work = _Backward(grad.contiguous(), x0, _layers(rest[: 3 * count]))
        lowest = 0 if needs[0] else [any(each) for each in wanted].index(True)
        found: list[Any] = [None] * (3 * count)
        for at in reversed(range(lowest, count)):
            last = at == lowest and not needs[0]
            found[3 * at : 3 * at + 3] = work.down(at, xs[at], middles[at], wanted[at], last)
        return kernels.of_x0(work.grad, work.more, products[::-1]) if needs[0] else None, *found


class Wanted(NamedTuple):
    """Which gradients of a layer's numbers are wanted."""

    up: bool
    bias: bool
    down: bool


class _Backward:
    """The way down through the layers. What layers add to the gradient of the last one stays in a list of its own:
    a pass reads it sooner than it would be added up in memory."""

    def __init__(self, grad: Tensor, x0: Tensor, layers: Sequence[Cross]) -> None:
        self.grad, self.x0, self.layers = grad, x0, layers
        self.more: list[Tensor] = []  # of the last layer first

    def down(self, at: int, x: Tensor, middle: Tensor, wanted: Wanted, last: bool) -> list[Tensor | None]:
        """The gradients of a layer's numbers; what goes on to the layers below is kept, unless this is the last.

        The layer has read x [B, n], and with its `down` made of it the middle [B, r].
        """
        up, _, down = self.layers[at]
        dp, dp_t = torch.empty_like(x), None
        if down is None and wanted.up and _turns(x):
            dp_t = kernels.room_for_turned(x)
        sums = kernels.of_product(self.grad, self.more, self.x0, dp, dp_t)
        of_bias = sums.to(x.dtype) if wanted.bias else None
        if down is None:
            of_up = (dp.t() if dp_t is None else dp_t) @ x if wanted.up else None
            self.more += [] if last else [linear(dp, up.t().contiguous())]
            return [of_up, of_bias, None]
        of_up = (_turned(middle) @ dp).t() if wanted.up else None  # the smaller factor is the one to be transposed
        return [of_up, of_bias, self._through_rank(dp, x, up, down, wanted.down, last)]

    def _through_rank(self, dp: Tensor, x: Tensor, up: Tensor, down: Tensor, wanted: bool, last: bool) -> Tensor | None:
        """The gradient of `down`; and what goes on, in the memory of dp."""
        if last and not wanted:
            return None
        dm = linear(dp, up.t().contiguous())  # [B, r]
        if not last:
            self.more.append(torch.mm(dm, down.t().contiguous().t(), out=dp))
        return _turned(dm) @ x if wanted else None


def _layers(given: Sequence[Any]) -> list[Cross]:
    return [Cross(*given[at : at + 3]) for at in range(0, len(given), 3)]


def _turns(matrix: Tensor) -> bool:
    """Whether the gradient of weights is sooner found with this factor [B, m] transposed in memory: TF32 wants it."""
    return matrix.dtype == torch.float32 and matrix.shape[1] >= WIDE


def _turned(matrix: Tensor) -> Tensor:
    """[m, B], in memory too where that is quicker."""
    return kernels.turned(matrix) if _turns(matrix) else matrix.t()
