"""Batch: everything the loader hands to a model for one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hybridrec.types.arena import View, check_arena, compact, locate
from hybridrec.types.id_block import IdBlock
from hybridrec.types.ragged import Ragged, same_bits


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Batch:
    """The rows of one step: packed ids, dense [B, n], label [B] or [B, k], weight [B], and the rest.

    `extra` holds what is neither id nor dense: deeper nests, strings, other columns. `dense_names` and
    `label_names` name the columns, where known. A batch is a value: `dataclasses.replace(batch, label=...)`
    makes a changed one. A loader's batch views one `arena` of bytes, so that `.to()`, `.pin_memory()`,
    `.clone()` and pickling copy once.

    >>> ids = IdBlock.from_lists({"user": [7, 8], "tags": [[1], [2, 3]]})
    >>> Batch(ids, torch.zeros(2, 1), torch.ones(2), dense_names=("age",), label_names=("click",))
    Batch(2 rows, cpu)
      ids     2 features, 2 rows, 5 ids
        user  1 per row
        tags  ragged, mean 1.5
      dense   [2, 1] float32: age
      label   [2] float32: click
    """

    ids: IdBlock
    dense: Tensor
    label: Tensor | None = None
    weight: Tensor | None = None
    extra: Mapping[str, Ragged | Tensor] = field(default_factory=dict)
    dense_names: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    arena: Tensor | None = None

    def __post_init__(self) -> None:
        rows = self.size
        if self.dense.dim() != 2 or len(self.dense) != rows or not self.dense.is_floating_point():
            raise _misfit("dense", self.dense, f"floating-point [{rows}, n]; without dense features n is 0")
        if self.label is not None and (self.label.dim() not in (1, 2) or len(self.label) != rows):
            raise _misfit("label", self.label, f"[{rows}] or [{rows}, k]")
        if self.weight is not None and (self.weight.shape != (rows,) or not self.weight.is_floating_point()):
            raise _misfit("weight", self.weight, f"floating-point [{rows}]")
        _check_names("dense", self.dense_names, self.dense.shape[1])
        _check_names("label", self.label_names, _columns(self.label))
        for name, column in self.extra.items():
            if isinstance(column, Tensor) and column.dim() == 0:
                raise _misfit(f"extra column {name!r}", column, f"[{rows}, …]")
            if len(column) != rows:
                raise ValueError(f"extra column {name!r} has {len(column)} rows, the batch has {rows}")
        parts = {"dense": self.dense, "label": self.label, "weight": self.weight, **self.extra}
        for name, part in parts.items():
            if part is not None and part.device != self.device:
                raise ValueError(f"{name} is on {part.device} but ids are on {self.device}; move it with .to()")
        if self.arena is not None:
            check_arena(self.arena)

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of rows, B; the same as `len(batch)`."""
        return self.ids.batch_size

    def __len__(self) -> int:
        return self.ids.batch_size

    def __bool__(self) -> bool:
        return True  # an empty batch is still a batch: `while batch:` must not end on it

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def __repr__(self) -> str:
        arena = "" if self.arena is None else f", arena of {len(self.arena) / 2**20:,.1f} MiB"
        lines = [f"Batch({self.size:,} rows, {self.device}{arena})", f"ids     {self.ids.describe()}"]
        lines += [f"  {line}" for line in self.ids.lines()]
        lines.append(f"dense   {_describe(self.dense, self.dense_names)}")
        if self.label is not None:
            lines.append(f"label   {_describe(self.label, self.label_names)}")
        if self.weight is not None:
            lines.append(f"weight  {_describe(self.weight, ())}")
        for place, (name, column) in enumerate(self.extra.items()):
            kind = column.describe() if isinstance(column, Ragged) else _describe(column, ())
            lines.append(f"{'' if place else 'extra':6}  {name}: {kind}")
        return "\n  ".join(lines)

    def equal(self, other: Batch) -> bool:
        """Whether both hold the same rows, bit for bit (NaN equals NaN), wherever their memory lies."""
        heads = [(b.dense_names, b.label_names, list(b.extra)) for b in (self, other)]
        if heads[0] != heads[1] or not self.ids.equal(other.ids):
            return False
        mine, theirs = ([b.dense, b.label, b.weight, *b.extra.values()] for b in (self, other))
        return all(_equal(a, b) for a, b in zip(mine, theirs, strict=True))

    # -- where it is --------------------------------------------------------------------------------------

    def map_tensors(self, fn: Callable[[Tensor], Any]) -> Batch:
        """A batch whose tensors are `fn(tensor)`, unchecked and without an arena."""

        def mapped(part: Ragged | IdBlock | Tensor | None) -> Any:
            return part.map_tensors(fn) if isinstance(part, Ragged | IdBlock) else None if part is None else fn(part)

        tensors = (mapped(self.ids), mapped(self.dense), mapped(self.label), mapped(self.weight))
        extra = {name: mapped(column) for name, column in self.extra.items()}
        return _assemble(None, *tensors, extra, self.dense_names, self.label_names)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """This batch on another device, in one copy where it has an arena.

        With `non_blocking=True` from pinned memory the copy runs on the current stream; keep this batch until
        it has run.

        >>> batch = Batch(IdBlock.from_lists({"user": [7, 8]}), torch.zeros(2, 0))
        >>> batch.to("cpu").device
        device(type='cpu')
        """
        return self._moved(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """This batch in page-locked memory, in one copy where it has an arena."""
        return self._moved(Tensor.pin_memory)

    def clone(self) -> Batch:
        """A batch with memory of its own, for keeping beyond the loader's next one."""
        return self._moved(Tensor.clone)

    def record_stream(self, stream: torch.Stream) -> None:
        """Tell the allocator that `stream` uses this batch, as `Tensor.record_stream` does for one tensor."""

        for tensor in self._memories():
            tensor.record_stream(stream)  # pyright: ignore[reportArgumentType] (the stub knows no torch.Stream)

    def _memories(self) -> list[Tensor]:
        """The arena, if there is one, and the tensors that lie elsewhere."""
        arena, found = self.arena, []
        if arena is None:
            self.map_tensors(found.append)
            return found
        storage = arena.untyped_storage()._cdata
        self.map_tensors(lambda t: found.append(t) if t.untyped_storage()._cdata != storage else None)
        return [arena, *found]

    def _moved(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """`move` applied to the arena once and to every tensor outside it."""
        if (arena := self.arena) is None:
            return self.map_tensors(move)
        copy = move(arena)

        def place(tensor: Tensor) -> Tensor:
            view = locate(tensor, arena)
            return move(tensor) if view is None else view.on(copy)

        return _with_arena(self.map_tensors(place), copy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the arena once, its views as places in it."""
        arena = self.arena
        parts = self if arena is None else self.map_tensors(lambda t: locate(t, arena) or t)
        fields = (
            parts.ids,
            parts.dense,
            parts.label,
            parts.weight,
            parts.extra,
            self.dense_names,
            self.label_names,
        )
        return _assemble, (None if arena is None else compact(arena), *fields)


def _assemble(arena: Tensor | None, *fields: Any) -> Batch:
    """A batch of these fields, unchecked; where there is an arena, places become tensors again."""
    made = object.__new__(Batch)
    for name, value in zip(Batch.__dataclass_fields__, (*fields, None), strict=True):
        object.__setattr__(made, name, value)
    if arena is None:
        return made
    return _with_arena(made.map_tensors(lambda t: t.on(arena) if isinstance(t, View) else t), arena)


def _with_arena(batch: Batch, arena: Tensor) -> Batch:
    object.__setattr__(batch, "arena", arena)
    return batch


def _check_names(part: str, names: tuple[str, ...], columns: int) -> None:
    if names and len(names) != columns:
        raise ValueError(f"{part} has {columns} columns but {len(names)} names: {', '.join(names)}")


def _equal(a: Ragged | Tensor | None, b: Ragged | Tensor | None) -> bool:
    if isinstance(a, Ragged):
        return isinstance(b, Ragged) and a.equal(b)
    if a is None or b is None:
        return a is b
    return isinstance(b, Tensor) and same_bits(a, b)


def _columns(label: Tensor | None) -> int:
    if label is None:
        return 0
    return label.shape[1] if label.dim() == 2 else 1


def _describe(tensor: Tensor, names: tuple[str, ...], most: int = 12) -> str:
    shown = ", ".join(names[:most]) + f", … {len(names) - most} more" * (len(names) > most)
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{list(tensor.shape)} {kind}{': ' * bool(names)}{shown}"


def _misfit(name: str, tensor: Tensor, rule: str) -> ValueError:
    return ValueError(f"{name} must be {rule}, got {tensor.dtype} {list(tensor.shape)}")
