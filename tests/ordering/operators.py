"""Operators of torch on the stand-in card: which memory they make, read and write, and where the host waits.

Two modes see them. Python's calls say which device a tensor is asked for, and are told `cuda` of those on the card; the
dispatcher says which operators come of that, backward passes included.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.ordering.card import Card
from tests.ordering.memory import CARD, PINNED, READS, WRITES, Places

HOST = "host"
aten = torch.ops.aten
# Whose result has a size that the host must know, or which is a number of the host.
WAITING = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default),
}
# Which ask a tensor for its shape alone.
LIKE = {"empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"}
COPIES = {aten.copy_.default, aten.clone.default, aten._to_copy.default}


def places_of(tensor: Tensor, begin: int) -> Places | slice:
    """The bytes of a tensor, counted from an address."""
    first, size = tensor.data_ptr() - begin, tensor.element_size()
    if tensor.is_contiguous():
        return slice(first, first + tensor.numel() * size)
    at = np.zeros(1, dtype=np.int64)
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = (at[:, None] + np.arange(length) * stride).ravel()
    return np.unique((first + at[:, None] * size + np.arange(size)).ravel())


class Dispatched(TorchDispatchMode):
    """Notes what each operator reads and writes."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self._note(func, args, kwargs or {}, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        card = self._card
        given = [(each, writes) for value, writes in _arguments(func, args, kwargs) for each in _tensors(value)]
        known = {tensor.untyped_storage()._cdata for tensor, _ in given}
        made = [each for each in _tensors(out) if each.untyped_storage()._cdata not in known]
        if not made and not any(writes for _, writes in given) and func not in WAITING:
            return  # a view
        on_card = any(card.kind_of(tensor) == CARD for tensor, _ in given)
        kind = card.here.making or (CARD if on_card else HOST)
        for tensor in made:
            keep(card, tensor, kind)
        if card.here.quiet:
            return
        on_card = on_card or (bool(made) and kind == CARD)
        deed = card.deed(card.current.who if on_card else card.thread, str(func))
        read = [] if func._schema.name.removeprefix("aten::") in LIKE else given
        for tensor, writes in [*read, *((tensor, True) for tensor in made)]:
            block = card.memory.find(_storage(tensor))
            if block is not None and tensor.numel():
                if block.kind == PINNED and on_card:
                    block.copied_by.add(deed.who)
                card.access(block, places_of(tensor, block.address), deed, WRITES if writes else READS)
        if on_card and self._waits(func, args, given, made):
            card.await_current()

    def _waits(self, func: Any, args: Any, given: list[tuple[Tensor, bool]], made: list[Tensor]) -> bool:
        """Whether the host waits for the current stream."""
        if func in WAITING:
            return True
        if func is aten.index.Tensor and any(each.dtype == torch.bool for each in _tensors(args[1])):
            return True
        if func not in COPIES or not given[0][0].numel():
            return False
        kinds = {self._card.kind_of(tensor) for tensor in (*(each for each, _ in given), *made)}
        if kinds == {CARD}:
            return False
        beside = args[2] if func is aten.copy_.default and len(args) > 2 else not self._card.here.waits
        to_ordinary = self._card.kind_of(given[0][0] if func is aten.copy_.default else made[0]) is None
        return not beside or to_ordinary


def _arguments(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values of an operator, and whether it writes there."""
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        yield value, argument.alias_info is not None and argument.alias_info.is_write


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor) and each.device.type == "cpu"]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def keep(card: Card, tensor: Tensor, kind: str) -> None:
    """The memory of a tensor is of a kind, as long as it is there."""
    storage = tensor.untyped_storage()
    if not storage.nbytes() and kind == CARD and storage._cdata not in card.empty:
        card.empty.add(storage._cdata)
        weakref.finalize(storage, card.empty.discard, storage._cdata).atexit = False
    if kind == HOST or not storage.nbytes() or card.memory.find(storage.data_ptr()) is not None:
        return
    block = card.add(storage.data_ptr(), storage.nbytes(), kind)
    weakref.finalize(storage, card.remove, block).atexit = False


# -- what Python asks for -----------------------------------------------------------------------------------


class Asked(TorchFunctionMode):
    """Makes tensors on the stand-in card where code asks for one, and answers as those on a card do."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card
        self._answers: dict[Any, Callable[..., Any]] = {
            torch.Tensor.device.__get__: self._device,  # pyright: ignore[reportAttributeAccessIssue]
            torch.Tensor.is_cuda.__get__: lambda tensor, *_: card.kind_of(tensor) == CARD,  # pyright: ignore
            torch.Tensor.is_pinned: lambda tensor, *_: card.kind_of(tensor) == PINNED,
            torch.Tensor.to: self._to,
            torch.Tensor.cpu: lambda tensor, *_, **__: self._to(tensor, "cpu"),
            torch.Tensor.cuda: lambda tensor, device=None, non_blocking=False: self._to(tensor, "cuda", non_blocking),
            torch.Tensor.pin_memory: lambda tensor, *_: self._moved(tensor, PINNED, True),
            torch.Tensor.tolist: self._tolist,
            torch.Tensor.backward: self._backward,
            torch.Tensor.numpy: self._numpy,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = self._answers.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        device, pinned = kwargs.get("device"), kwargs.pop("pin_memory", False)
        if device is None and not pinned:
            return func(*args, **kwargs)
        kind = PINNED if pinned else _kind(device)
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
        with self._making(kind):
            made = func(*args, **kwargs)
        if isinstance(made, Tensor) and made.device.type == "cpu":
            before = self._card.kind_of(made)
            keep(self._card, made, kind)
            if before is None and kind == CARD and func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
                self._card.await_current()  # for the copy from ordinary memory
        return made

    @contextmanager
    def _making(self, kind: str, waits: bool | None = None) -> Iterator[None]:
        here = self._card.here
        before, here.making, here.waits = (here.making, here.waits), kind, waits
        try:
            yield
        finally:
            here.making, here.waits = before

    def _device(self, tensor: Tensor, *_: Any) -> torch.device:
        return self._card.device if self._card.kind_of(tensor) == CARD else tensor.device

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        here, to, dtype = self._card.kind_of(tensor) == CARD, kwargs.get("device"), kwargs.get("dtype")
        flags = [each for each in args if isinstance(each, bool)]
        for each in args:
            if isinstance(each, Tensor):
                to, dtype = self._device(each), each.dtype
            elif isinstance(each, torch.dtype):
                dtype = each
            elif isinstance(each, str | torch.device | int) and not isinstance(each, bool):
                to = each
        beside = kwargs.get("non_blocking", bool(flags and flags[0]))
        there = here if to is None else _kind(to) == CARD
        if here != there:
            tensor = self._moved(tensor, CARD if there else (PINNED if beside else HOST), beside)
        elif kwargs.get("copy"):
            tensor = tensor.clone()
        return tensor if dtype is None else tensor.to(dtype)

    def _moved(self, tensor: Tensor, kind: str, beside: bool) -> Tensor:
        with self._making(kind, waits=not beside):
            return tensor.clone()

    def _tolist(self, tensor: Tensor) -> Any:
        self._read(tensor)
        return tensor.tolist()

    def _numpy(self, tensor: Tensor, **options: Any) -> Any:
        assert self._card.kind_of(tensor) != CARD, "numpy reads no memory of a card"
        self._read(tensor)
        return tensor.numpy(**options)

    def _read(self, tensor: Tensor) -> None:
        """By the host, which waits for a tensor on the card to be copied."""
        card, block = self._card, self._card.memory.find(_storage(tensor))
        if block is None or card.here.quiet or not tensor.numel():
            return
        on_card = block.kind == CARD
        deed = card.deed(card.current.who if on_card else card.thread, "a read by the host")
        card.access(block, places_of(tensor, block.address), deed, READS)
        if on_card:
            card.await_current()

    def _backward(self, tensor: Tensor, gradient: Tensor | None = None, **options: Any) -> None:
        """As it is, but with this mode on within it."""
        assert not any(options.values()), "a plain backward"
        first = torch.ones_like(tensor) if gradient is None else gradient
        with self:
            torch.autograd.graph._engine_run_backward(
                (tensor,), (first,), False, False, (), allow_unreachable=True, accumulate_grad=True
            )


def _kind(device: Any) -> str:
    return CARD if torch.device(device).type == "cuda" else HOST
