"""Ragged: rows of different lengths as one flat tensor plus offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pyarrow as pa

Text = Literal["utf8", "binary"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ragged:
    """A column whose row `i` is `values[offsets[i]:offsets[i + 1]]`.

    `values` is a tensor (trailing dimensions are allowed: one vector per entry) or another `Ragged`
    (lists of lists, to any depth). With `text` set, `values` are bytes (uint8) and each row is one string.
    Offsets are int64 and start at 0. They are checked in full on the CPU; on other devices only shapes are
    checked, so that construction never waits for the device (`check()` does the rest).

    >>> r = Ragged(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 2, 3]))
    >>> r
    Ragged(3 lists of int64, mean length 1, cpu): [[1, 2], [], [3]]
    >>> r[0], r.lengths()
    (tensor([1, 2]), tensor([2, 0, 1]))
    """

    values: Tensor | Ragged
    offsets: Tensor
    text: Text | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor | Ragged):
            raise TypeError(f"values must be a Tensor or a Ragged, got {type(self.values).__name__}; see from_lists")
        if not isinstance(self.offsets, Tensor) or self.offsets.dtype != torch.int64:
            kind = self.offsets.dtype if isinstance(self.offsets, Tensor) else type(self.offsets).__name__
            raise TypeError(f"offsets must be an int64 tensor, got {kind}; convert with offsets.long()")
        if self.offsets.dim() != 1 or len(self.offsets) == 0:
            raise ValueError(
                f"offsets must have shape [rows + 1], got {list(self.offsets.shape)}; no rows is offsets [0]"
            )
        if isinstance(self.values, Tensor) and self.values.dim() == 0:
            raise ValueError("values must have at least one dimension, got a 0-d tensor")
        if self.values.device != self.offsets.device:
            raise ValueError(
                f"values are on {self.values.device}, offsets on {self.offsets.device}; move one with .to()"
            )
        if self.text is not None:
            self._check_text()
        if readable(self.offsets):
            self._check_offsets()

    def _check_text(self) -> None:
        if self.text not in ("utf8", "binary"):
            raise ValueError(f"text must be 'utf8', 'binary' or None, got {self.text!r}")
        flat = self.values
        if not isinstance(flat, Tensor) or flat.dtype != torch.uint8 or flat.dim() != 1:
            raise TypeError(
                f"text={self.text!r} needs values as a 1-d uint8 tensor; for lists of strings "
                "set text on the inner Ragged"
            )

    def _check_offsets(self) -> None:
        first, last, size = int(self.offsets[0]), int(self.offsets[-1]), len(self.values)
        if first != 0 or last != size:
            raise ValueError(f"offsets must run from 0 to len(values) = {size}, got {first} to {last}")
        if len(self) and int(self.lengths().min()) < 0:
            row = int(self.lengths().argmin())
            a, b = self.offsets[row : row + 2].tolist()
            raise ValueError(f"offsets must not decrease, but row {row} goes from {a} to {b}")

    def check(self) -> Self:
        """Check the offsets of every level, also on a device (waits for it); returns self."""
        self._check_offsets()
        if isinstance(self.values, Ragged):
            self.values.check()
        return self

    @classmethod
    def trusted(cls, values: Any, offsets: Any, text: Text | None = None) -> Self:
        """Build without any check, for parts that are already known to fit."""
        made = object.__new__(cls)
        for name, value in (("values", values), ("offsets", offsets), ("text", text)):
            object.__setattr__(made, name, value)
        return made

    # -- what it is ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def depth(self) -> int:
        """List levels, a string being a scalar: 0 for strings, 1 for lists, 2 for lists of lists."""
        inner = self.values.depth if isinstance(self.values, Ragged) else 0
        return inner + (self.text is None)

    @property
    def flat(self) -> Tensor:
        """The innermost values: every scalar (or byte) of every row."""
        return self.values.flat if isinstance(self.values, Ragged) else self.values

    @property
    def dtype(self) -> torch.dtype:
        return self.flat.dtype

    @property
    def device(self) -> torch.device:
        return self.offsets.device

    @property
    def leaf_text(self) -> Text | None:
        """How the innermost values are to be read: "utf8" or "binary" strings, or None for numbers."""
        return self.values.leaf_text if isinstance(self.values, Ragged) else self.text

    def lengths(self) -> Tensor:
        """Entries per row, int64 [n] (bytes per row for text)."""
        return self.offsets.diff()

    def __getitem__(self, key: int | slice) -> Any:
        """Row `key` (Tensor, Ragged, str or bytes), or a Ragged for a slice; both view the values."""
        if isinstance(key, slice):
            return self._rows(*self._bounds(key))
        row = key + len(self) if key < 0 else key
        if not 0 <= row < len(self):
            raise IndexError(f"row {key} is out of range: this Ragged has {len(self)} rows")
        start, stop = self.offsets[row : row + 2].tolist()
        entries = self.values[start:stop]
        return entries if self.text is None else _decode(_bytes(entries), self.text)

    def _bounds(self, key: slice) -> tuple[int, int]:
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError(f"a Ragged is sliced in steps of 1, got {step}")
        return start, max(start, stop)

    def _rows(self, start: int, stop: int) -> Ragged:
        offsets = self.offsets[start : stop + 1]
        first, last = offsets[[0, -1]].tolist()
        return Ragged.trusted(self.values[first:last], offsets - first if first else offsets, self.text)

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def describe(self) -> str:
        """One line for people, without the values.

        >>> Ragged.from_lists([["ab", "c"], []]).describe()
        '2 lists of utf8 strings, mean lengths 1 and 1.5'
        """
        means, level = [], self
        while isinstance(level, Ragged):
            means.append(f"{len(level.values) / max(len(level), 1):.4g}")
            level = level.values
        leaf = f"{self.leaf_text} strings" if self.leaf_text else str(level.dtype).removeprefix("torch.")
        if level.dim() > 1:
            leaf = f"{leaf} {list(level.shape[1:])}"
        kind = "lists of " * self.depth + leaf
        return f"{len(self):,} {kind}, mean length{'s' * (len(means) > 1)} {' and '.join(means)}"

    def __repr__(self) -> str:
        head = f"Ragged({self.describe()}, {self.device})"
        if not readable(self.offsets):
            return head
        try:
            return f"{head}: {_preview(self[:5].to_list(), 4)}"
        except UnicodeDecodeError:
            return f"{head}: not valid utf8"

    def equal(self, other: Ragged) -> bool:
        """Whether both hold the same rows, bit for bit (NaN equals NaN), with the same types."""
        if not isinstance(other, Ragged) or self.text != other.text or not same_bits(self.offsets, other.offsets):
            return False
        if isinstance(self.values, Ragged):
            return isinstance(other.values, Ragged) and self.values.equal(other.values)
        return isinstance(other.values, Tensor) and same_bits(self.values, other.values)

    # -- where it is --------------------------------------------------------------------------------------

    def map_tensors(self, fn: Callable[[Tensor], Any]) -> Ragged:
        """A Ragged whose tensors are `fn(tensor)`, unchecked: values first, then offsets."""
        values = self.values.map_tensors(fn) if isinstance(self.values, Ragged) else fn(self.values)
        return Ragged.trusted(values, fn(self.offsets), self.text)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Ragged:
        """This column on another device."""
        return self.map_tensors(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Ragged:
        """This column in page-locked memory."""
        return self.map_tensors(Tensor.pin_memory)

    # -- conversions --------------------------------------------------------------------------------------

    @classmethod
    def from_lists(cls, rows: Sequence[Any], dtype: torch.dtype | None = None) -> Ragged:
        """From Python lists (tuples, arrays, tensors) of numbers, of strings or of further lists.

        Whole numbers become int64, others float32, unless `dtype` says otherwise; without any number, int64.
        A plain list of strings or bytes gives a string column.

        >>> Ragged.from_lists([[[1], [2, 3]], []]).depth
        2
        """
        from hybridrec.types import lists

        return lists.from_lists(rows, dtype)

    def to_list(self) -> list[Any]:
        """Nested Python lists, the inverse of `from_lists`.

        >>> Ragged.from_lists([["a", "bc"], []]).to_list()
        [['a', 'bc'], []]
        """
        bounds = pairwise(self.offsets.tolist())
        if self.text is not None:
            data = _bytes(self.flat)
            return [_decode(data[a:b], self.text) for a, b in bounds]
        entries = self.values.to_list() if isinstance(self.values, Ragged) else self.values.tolist()
        return [entries[a:b] for a, b in bounds]

    def to_padded(self, length: int | Sequence[int | None] | None = None, value: float = 0) -> Tensor:
        """A dense tensor [n, L] (deeper nests: [n, L1, L2, …]) filled up with `value`.

        `length` fixes L (one entry per level for deeper nests) and cuts longer lists after their first L
        entries; None takes the longest list. With a length given, nothing waits for the device.

        >>> Ragged.from_lists([[1, 2, 3], [4]]).to_padded(2, value=-1)
        tensor([[ 1,  2],
                [ 4, -1]])
        """
        from hybridrec.types import layouts

        return layouts.to_padded(self, length, value)

    @classmethod
    def from_padded(cls, padded: Tensor, lengths: Tensor | Sequence[Tensor]) -> Ragged:
        """From a dense tensor [n, L, …] and the number of entries that count in each row.

        For a deeper nest give one lengths tensor per level: [n], then [n, L1], and so on.

        >>> Ragged.from_padded(torch.tensor([[1, 2], [4, 0]]), torch.tensor([2, 1])).to_list()
        [[1, 2], [4]]
        """
        from hybridrec.types import layouts

        return layouts.from_padded(padded, [lengths] if isinstance(lengths, Tensor) else list(lengths))

    def to_nested(self) -> Tensor:
        """A `torch.nested` tensor of jagged layout over the same memory; one list level only.

        >>> Ragged.from_lists([[1, 2], [3]]).to_nested().unbind()[0]
        tensor([1, 2])
        """
        from hybridrec.types import layouts

        return layouts.to_nested(self)

    @classmethod
    def from_nested(cls, nested: Tensor) -> Ragged:
        """From a `torch.nested` tensor; a jagged one without holes is viewed, not copied.

        >>> Ragged.from_nested(Ragged.from_lists([[1, 2], [3]]).to_nested()).to_list()
        [[1, 2], [3]]
        """
        from hybridrec.types import layouts

        return layouts.from_nested(nested)

    def to_sparse(self) -> Tensor:
        """A COO tensor [n, longest] with each entry at (row, position); zeros are entries like others.

        Deeper nests give one dimension per level; there, empty inner lists leave no trace.

        >>> Ragged.from_lists([[7], [0, 9]]).to_sparse().indices()
        tensor([[0, 1, 1],
                [0, 0, 1]])
        """
        from hybridrec.types import layouts

        return layouts.to_sparse(self)

    @classmethod
    def from_sparse(cls, sparse: Tensor) -> Ragged:
        """From a COO tensor [n, L] whose rows are filled from position 0 without holes, as by `to_sparse`.

        >>> Ragged.from_sparse(Ragged.from_lists([[7], [], [0, 9]]).to_sparse()).to_list()
        [[7], [], [0, 9]]
        """
        from hybridrec.types import layouts

        return layouts.from_sparse(sparse)

    def to_arrow(self) -> pa.Array:
        """An Arrow array: large_list for lists, large_string or large_binary for text.

        >>> Ragged.from_lists([[1], []]).to_arrow().type
        LargeListType(large_list<item: int64>)
        """
        from hybridrec.types import arrow

        return arrow.to_arrow(self)

    @classmethod
    def from_arrow(cls, array: pa.Array | pa.ChunkedArray) -> Ragged:
        """From an Arrow list or string array of any kind and depth; copies, and refuses nulls.

        >>> import pyarrow as pa
        >>> Ragged.from_arrow(pa.array([[1, 2], []]))
        Ragged(2 lists of int64, mean length 1, cpu): [[1, 2], []]
        """
        from hybridrec.types import arrow

        return arrow.from_arrow(array)


def offsets_of(lengths: Tensor) -> Tensor:
    """Offsets [n + 1] of rows with these lengths [n]."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def readable(tensor: Tensor) -> bool:
    """Whether reading a number from the tensor is free: a real CPU tensor, not a fake or meta one."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = [t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b) if t.numel()]
    return not bits or torch.equal(*bits)


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()


def _decode(data: bytes, text: Text) -> str | bytes:
    return data.decode() if text == "utf8" else data


def _preview(entry: Any, room: int) -> str:
    if not isinstance(entry, list):
        return f"{entry:.4g}" if isinstance(entry, float) else repr(entry)
    shown = [_preview(item, 6) for item in entry[:room]]
    return f"[{', '.join(shown + ['…'] * (len(entry) > room))}]"
