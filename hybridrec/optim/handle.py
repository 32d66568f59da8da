"""RowHandle: the stand-in for a table among an optimizer's parameters."""

from __future__ import annotations

import weakref
from math import inf
from typing import Any

import torch
from torch import Tensor

from hybridrec.optim.group import RowGroup


class RowHandle(Tensor):
    """An empty tensor that stands for the rows of a table, so that a row optimizer has something to list.

    Its `grad` is None while no gradients are queued. Else it is made for `torch.amp.GradScaler`, which finds overflows
    in it and multiplies it to unscale. `scale` is what the queued gradients are to be multiplied by: the factor that
    `grad` has by then, and that of `clip_grad_norm_`.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]  (as documented)

    @staticmethod
    def __new__(cls, group: RowGroup, table: str) -> RowHandle:
        return Tensor._make_subclass(cls, torch.empty(0, dtype=torch.float32, device="cpu"))

    def __init__(self, group: RowGroup, table: str) -> None:
        self._group = weakref.ref(group)  # the group owns its handles
        self.table = table
        self._gradient: RowGradient | None = None
        self._seen = 0  # backward calls that were queued when they were last scanned
        self._factor = 1.0

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  (a tensor's takes its contents)
        return f"RowHandle({self.table!r})"

    def clear(self) -> None:
        """Forget what was asked of gradients that are gone: called when they are used or discarded."""
        if self._gradient is not None or self._factor != 1.0:
            self._gradient, self._seen, self._factor = None, 0, 1.0

    @property
    def grad(self) -> RowGradient | None:  # pyright: ignore[reportIncompatibleVariableOverride]  (a stand-in)
        group = self._group()
        queued = group.pending(self.table) if group is not None else 0
        if group is None or not queued:
            return None
        if self._gradient is None:
            self._gradient = RowGradient()
        if self._seen != queued:  # a scan of the queue, so only where it has grown
            self._seen = queued
            if not group.finite([self.table]):
                self._gradient.mark()
        return self._gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            raise TypeError(
                f"the gradient of table {self.table!r} is a queue of rows and cannot be set, except to None"
            )
        group = self._group()
        if group is not None:
            group.discard([self.table])
        self.clear()

    @property
    def scale(self) -> float:
        """What the queued gradients are to be multiplied by."""
        return self._factor * (1.0 if self._gradient is None else self._gradient.factor)

    def multiply(self, factor: float) -> None:
        """Multiply the queued gradients by a factor, which counts until they are used or discarded."""
        self._factor *= factor


class RowGradient(Tensor):
    """Two numbers that stand for a table's queued gradients: their factor, 1, and a mark, inf where one is not finite.

    Only `torch.amp.GradScaler` may work on it. Whatever else takes it for the gradient, such as
    `torch.nn.utils.clip_grad_norm_`, would silently scale the rows by a wrong number, so it is refused.
    """

    @staticmethod
    def __new__(cls) -> RowGradient:
        return Tensor._make_subclass(cls, torch.tensor([1.0, 0.0], dtype=torch.float32, device="cpu"))

    @property
    def factor(self) -> float:
        """What the queued gradients are to be multiplied by."""
        return self.tolist()[0]

    def mark(self) -> None:
        """Let GradScaler find an overflow."""
        with torch._C.DisableTorchFunctionSubclass():
            self[1] = inf

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in _HARMLESS:
            raise TypeError(
                f"{name} was called on the gradient of an embedding table, which is a queue of rows and no tensor; "
                "to clip, use hybridrec.optim.clip_grad_norm_ or the option clip_row_norm"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


# What GradScaler does, attributes (dtype, device, is_sparse …), and printing.
_HARMLESS = {"_amp_foreach_non_finite_check_and_unscale_", "__get__", "__repr__", "__format__", "tolist"}
