"""IdBlock: the ids of all features of a batch in one tensor, feature after feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from hybridrec.types.lists import numbers
from hybridrec.types.ragged import Ragged, readable, same_bits

NO_ID = 1 - 2**63  # holds a place in `values` that no list reaches to: it stands for no row, and is no error


class KeyedJagged(NamedTuple):
    """The parts of TorchRec's KeyedJaggedTensor: `KeyedJaggedTensor(**parts._asdict())` makes one."""

    keys: list[str]
    values: Tensor
    lengths: Tensor
    weights: Tensor | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdBlock:
    """Packed ids, feature-major: feature `f` owns `values[starts[f]:starts[f + 1]]`.

    `hotness[f]` is the fixed number of ids per row, or None for a ragged feature; it is declared and never
    guessed from the counts. `offsets` [R, B + 1] has one line per ragged feature, in order, each starting at
    0. `starts` are plain ints, so that slicing never waits for the device. `weights` [N] go with the ids.
    The constructor checks shapes and, on the CPU, the ends of the offsets; `check()` checks them all.

    >>> block = IdBlock.from_lists({"user": [7, 8], "tags": [[1], [2, 3]]})
    >>> block
    IdBlock(2 features, 2 rows, 5 ids, cpu)
      user  1 per row
      tags  ragged, mean 1.5
    >>> block["tags"]
    Ragged(2 lists of int64, mean length 1.5, cpu): [[1], [2, 3]]
    """

    names: tuple[str, ...]
    values: Tensor
    starts: tuple[int, ...]
    hotness: tuple[int | None, ...]
    offsets: Tensor
    weights: Tensor | None = None
    batch_size: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self._check_names()
        self._check_tensors()
        sizes = [stop - start for start, stop in pairwise(self.starts)]
        for name, hot, size in zip(self.names, self.hotness, sizes, strict=True):
            if hot is not None and size != hot * self.batch_size:
                raise ValueError(
                    f"feature {name!r} has {size} ids, but {hot} per row and {self.batch_size} rows make "
                    f"{hot * self.batch_size}; a feature of varying length has hotness None"
                )
        if readable(self.offsets) and len(self.offsets):
            ends = self.offsets[:, [0, -1]].tolist()
            for name, size, (first, last) in zip(self._ragged(), self._ragged_sizes(), ends, strict=True):
                if first != 0 or last != size:
                    raise ValueError(f"offsets of {name!r} must run from 0 to {size}, got {first} to {last}")

    def _check_names(self) -> None:
        for part in ("names", "starts", "hotness"):
            if not isinstance(getattr(self, part), tuple):
                raise TypeError(f"{part} must be a tuple, got {type(getattr(self, part)).__name__}")
        if len(set(self.names)) != len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"feature names must differ, but {twice} appear more than once")
        count = len(self.names)
        if len(self.hotness) != count or len(self.starts) != count + 1:
            raise ValueError(
                f"{count} features need {count} hotness entries and {count + 1} starts, got "
                f"{len(self.hotness)} and {len(self.starts)}"
            )
        if self.batch_size < 0 or any(hot is not None and hot < 0 for hot in self.hotness):
            raise ValueError(f"batch_size and hotness must not be negative: {self.batch_size}, {self.hotness}")

    def _check_tensors(self) -> None:
        if self.values.dtype != torch.int64 or self.values.dim() != 1 or not self.values.is_contiguous():
            raise TypeError(
                "values must be a contiguous int64 tensor of one dimension, got "
                f"{self.values.dtype} {list(self.values.shape)}; convert with values.long().contiguous()"
            )
        rising = all(a <= b for a, b in pairwise(self.starts))
        if self.starts[0] != 0 or self.starts[-1] != self.values.shape[0] or not rising:
            raise ValueError(f"starts must rise from 0 to len(values) = {len(self.values)}, got {self.starts}")
        shape = (self.hotness.count(None), self.batch_size + 1)
        if self.offsets.dtype != torch.int64 or self.offsets.shape != shape or not self.offsets.is_contiguous():
            raise ValueError(
                f"offsets must be contiguous int64 {list(shape)} (ragged features, batch_size + 1), got "
                f"{self.offsets.dtype} {list(self.offsets.shape)}"
            )
        if self.weights is not None and (
            self.weights.dtype != torch.float32 or self.weights.shape != self.values.shape
        ):
            raise ValueError(
                f"weights must be float32 {list(self.values.shape)}, one per id, got {self.weights.dtype} "
                f"{list(self.weights.shape)}"
            )
        devices = {t.device for t in (self.values, self.offsets, self.weights) if t is not None}
        if len(devices) > 1:
            raise ValueError(f"values, offsets and weights must share a device, got {sorted(map(str, devices))}")

    @classmethod
    def trusted(
        cls,
        names: tuple[str, ...],
        values: Tensor,
        starts: tuple[int, ...],
        hotness: tuple[int | None, ...],
        offsets: Tensor,
        weights: Tensor | None,
        batch_size: int,
    ) -> IdBlock:
        """A block of parts that are known to fit: nothing is checked."""
        made = object.__new__(cls)
        given = names, values, starts, hotness, offsets, weights, batch_size
        for name, part in zip(cls.__dataclass_fields__, given, strict=True):
            object.__setattr__(made, name, part)
        return made

    def check(self) -> Self:
        """Check all offsets, also on a device (waits for it); returns self."""
        for name in self._ragged():
            try:
                self[name].check()
            except ValueError as error:
                raise ValueError(f"feature {name!r}: {error}") from error
        return self

    # -- what it is ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __getitem__(self, name: str) -> Ragged:
        """The feature's rows, viewing the block's values."""
        at = self._index(name)
        hot = self.hotness[at]
        if hot is None:
            offsets = self.offsets[self.hotness[:at].count(None)]
        else:
            offsets = torch.arange(self.batch_size + 1, device=self.device) * hot
        return Ragged.trusted(self.values[self.starts[at] : self.starts[at + 1]], offsets)

    def matrix(self, name: str) -> Tensor:
        """The ids of a feature of fixed hotness as a view [B, hotness].

        >>> IdBlock.from_lists({"user": [7, 8]}).matrix("user")
        tensor([[7],
                [8]])
        """
        at = self._index(name)
        hot = self.hotness[at]
        if hot is None:
            raise ValueError(f"feature {name!r} is ragged and has no matrix; use block[{name!r}].to_padded()")
        return self.values[self.starts[at] : self.starts[at + 1]].view(self.batch_size, hot)

    def lengths(self, name: str) -> Tensor:
        """Ids per row of one feature, int64 [B]."""
        at = self._index(name)
        hot = self.hotness[at]
        if hot is None:
            return self.offsets[self.hotness[:at].count(None)].diff()
        return torch.full((self.batch_size,), hot, dtype=torch.int64, device=self.device)

    def weights_of(self, name: str) -> Tensor | None:
        """The weights of one feature's ids as a view, or None where the block has none."""
        at = self._index(name)
        return None if self.weights is None else self.weights[self.starts[at] : self.starts[at + 1]]

    def select(self, names: Sequence[str]) -> IdBlock:
        """A block of these features in this order; neighbours are viewed, others copied together.

        >>> IdBlock.from_lists({"a": [1], "b": [2], "c": [3]}).select(["c", "a"]).values
        tensor([3, 1])
        """
        at = [self._index(name) for name in names]
        pieces = [(self.starts[i], self.starts[i + 1]) for i in at]
        lines = [self.hotness[:i].count(None) for i in at if self.hotness[i] is None]
        return IdBlock(
            tuple(names),
            _join(self.values, pieces),
            (0, *accumulate(b - a for a, b in pieces)),
            tuple(self.hotness[i] for i in at),
            _join(self.offsets, [(line, line + 1) for line in lines]),
            None if self.weights is None else _join(self.weights, pieces),
            batch_size=self.batch_size,
        )

    def _index(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise KeyError(f"no feature {name!r} in this block; it has {', '.join(self.names) or 'none'}") from None

    def _ragged(self) -> list[str]:
        return [name for name, hot in zip(self.names, self.hotness, strict=True) if hot is None]

    def _ragged_sizes(self) -> list[int]:
        spans = zip(pairwise(self.starts), self.hotness, strict=True)
        return [stop - start for (start, stop), hot in spans if hot is None]

    def lines(self, most: int = 12) -> list[str]:
        """One line per feature for people, `most` at most."""
        width = max((len(name) for name in self.names[:most]), default=0)
        shown = []
        for name, hot, (a, b) in list(zip(self.names, self.hotness, pairwise(self.starts), strict=True))[:most]:
            mean = f"ragged, mean {(b - a) / max(self.batch_size, 1):.4g}"
            shown.append(f"{name:{width}}  {mean if hot is None else f'{hot} per row'}")
        return shown + [f"… {len(self) - most} more"] * (len(self) > most)

    def describe(self) -> str:
        """The block in a few words, without its features."""
        weighted = ", weighted" * (self.weights is not None)
        return f"{len(self)} features, {self.batch_size:,} rows, {len(self.values):,} ids{weighted}"

    def __repr__(self) -> str:
        return "\n  ".join([f"IdBlock({self.describe()}, {self.device})", *self.lines()])

    def equal(self, other: IdBlock) -> bool:
        """Whether both hold the same features with the same ids and weights, bit for bit."""
        heads = [(b.names, b.starts, b.hotness, b.batch_size, b.weights is None) for b in (self, other)]
        if heads[0] != heads[1]:
            return False
        pairs = [(self.values, other.values), (self.offsets, other.offsets), (self.weights, other.weights)]
        return all(same_bits(a, b) for a, b in pairs if a is not None and b is not None)

    # -- where it is --------------------------------------------------------------------------------------

    def map_tensors(self, fn: Callable[[Tensor], Any]) -> IdBlock:
        """A block whose tensors are `fn(tensor)`, unchecked."""
        made = object.__new__(IdBlock)
        tensors = ("values", "offsets", "weights")
        for name in self.__dataclass_fields__:
            part = getattr(self, name)
            object.__setattr__(made, name, fn(part) if name in tensors and part is not None else part)
        return made

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> IdBlock:
        """This block on another device."""
        return self.map_tensors(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> IdBlock:
        """This block in page-locked memory."""
        return self.map_tensors(Tensor.pin_memory)

    # -- conversions --------------------------------------------------------------------------------------

    @classmethod
    def from_ragged(
        cls,
        features: Mapping[str, Ragged | Tensor],
        weights: Mapping[str, Tensor] | None = None,
        batch_size: int | None = None,
    ) -> IdBlock:
        """Pack features: a Ragged stays ragged, a tensor [B] has hotness 1, a tensor [B, h] has hotness h.

        `weights` gives one number per id for the features it names; the others get ones.
        `batch_size` is needed only where there is no feature to tell it.

        >>> IdBlock.from_ragged({"item": torch.tensor([[1, 2], [3, 4]])}).hotness
        (2,)
        """
        sizes = {name: _rows(column) for name, column in features.items()}
        rows = next(iter(sizes.values()), 0) if batch_size is None else batch_size
        for name, size in sizes.items():
            if size != rows:
                raise ValueError(f"features must have equally many rows: {name!r} has {size}, not {rows}")
        values = [_ids(name, column) for name, column in features.items()]
        device = values[0].device if values else None
        lines = [column.offsets for column in features.values() if isinstance(column, Ragged)]
        return cls(
            tuple(features),
            torch.cat(values) if values else torch.empty(0, dtype=torch.int64),
            (0, *accumulate(v.shape[0] for v in values)),
            tuple(_hotness(column) for column in features.values()),
            torch.stack(lines) if lines else torch.empty(0, rows + 1, dtype=torch.int64, device=device),
            None if weights is None else _weights(dict(zip(features, values, strict=True)), weights),
            batch_size=rows,
        )

    @classmethod
    def from_lists(cls, features: Mapping[str, Sequence[Any]]) -> IdBlock:
        """From Python lists: lists of ids are ragged, plain ids have hotness 1.

        >>> IdBlock.from_lists({"tags": [[1], [2]], "user": [5, 6]}).hotness
        (None, 1)
        """
        columns: dict[str, Ragged | Tensor] = {}
        for name, rows in features.items():
            plain = len(rows) > 0 and all(isinstance(row, int) for row in rows)
            columns[name] = numbers(rows, torch.int64) if plain else Ragged.from_lists(rows)
        return cls.from_ragged(columns)

    def to_kjt(self) -> KeyedJagged:
        """The layout of TorchRec's KeyedJaggedTensor: keys, the same values, lengths [F * B], weights.

        >>> IdBlock.from_lists({"user": [7, 8], "tags": [[1], [2, 3]]}).to_kjt().lengths
        tensor([1, 1, 1, 2])
        """
        lengths = [self.lengths(name) for name in self.names]
        joined = torch.cat(lengths) if lengths else self.values.new_empty(0)
        return KeyedJagged(list(self.names), self.values, joined, self.weights)

    @classmethod
    def from_kjt(cls, keys: Sequence[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> IdBlock:
        """From the parts of a KeyedJaggedTensor; every feature is ragged. Waits for the device once.

        >>> parts = torch.tensor([7, 8, 1, 2, 3]), torch.tensor([1, 1, 1, 2])
        >>> IdBlock.from_kjt(["user", "tags"], *parts)["tags"].to_list()
        [[1], [2, 3]]
        """
        count = len(keys)
        if lengths.dim() != 1 or (len(lengths) % count if count else len(lengths)):
            raise ValueError(
                f"lengths of shape {list(lengths.shape)} do not divide among {count} keys; one batch "
                "size per key is not supported"
            )
        counts = lengths.long().view(count, -1) if len(lengths) else lengths.new_empty(count, 0).long()
        offsets = torch.nn.functional.pad(counts.cumsum(1), (1, 0))
        if len(lengths) and int(lengths.min()) < 0:
            raise ValueError(f"lengths must not be negative, got {int(lengths.min())}")
        sizes = offsets[:, -1].tolist()
        if sum(sizes) != len(values):
            raise ValueError(f"lengths sum to {sum(sizes)}, but there are {len(values)} values")
        weights = None if weights is None else weights.float().contiguous()
        ids = _integers("values", values).contiguous()
        starts = (0, *accumulate(sizes))
        ragged, rows = (None,) * count, counts.shape[1]
        return cls(tuple(keys), ids, starts, ragged, offsets, weights, batch_size=rows)


def _join(source: Tensor, pieces: list[tuple[int, int]]) -> Tensor:
    """The pieces of the first dimension one after another; a view where they already lie so."""
    if not pieces:
        return source[:0]
    if all(a[1] == b[0] for a, b in pairwise(pieces)):
        return source[pieces[0][0] : pieces[-1][1]]
    return torch.cat([source[a:b] for a, b in pieces])


def _integers(name: str, values: Tensor) -> Tensor:
    if values.is_floating_point() or values.is_complex():
        raise TypeError(
            f"ids must be whole numbers, but {name!r} holds {values.dtype}; dense features go to Batch.dense"
        )
    return values.to(torch.int64)


def _ids(name: str, column: Ragged | Tensor) -> Tensor:
    if isinstance(column, Ragged):
        if column.text is not None or column.leaf_text:
            raise TypeError(f"feature {name!r} holds strings; hash them to ids, or carry them in Batch.extra")
        if column.depth != 1 or column.flat.dim() != 1:
            raise ValueError(
                f"feature {name!r} must be one list of ids per row, got {column.describe()}; deeper nests go "
                "to Batch.extra"
            )
        return _integers(name, column.flat)
    if column.dim() not in (1, 2):
        raise ValueError(f"feature {name!r} must have shape [B] or [B, hotness], got {list(column.shape)}")
    return _integers(name, column).flatten()


def _rows(column: Ragged | Tensor) -> int:
    """The rows of a column, by its shape: len() is a plain number, which torch.export would take for a constant."""
    return column.offsets.shape[0] - 1 if isinstance(column, Ragged) else column.shape[0]


def _hotness(column: Ragged | Tensor) -> int | None:
    if isinstance(column, Ragged):
        return None
    return 1 if column.dim() == 1 else column.shape[1]


def _weights(ids: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> Tensor:
    if unknown := sorted(set(weights) - set(ids)):
        raise ValueError(f"weights for {unknown}, which are no features here; there are {sorted(ids)}")
    parts = []
    for name, values in ids.items():
        size = values.shape[0]
        part = weights[name] if name in weights else torch.ones(size, device=values.device)
        if part.numel() != size:
            raise ValueError(f"feature {name!r} has {size} ids but {part.numel()} weights; give one per id")
        parts.append(part.float().flatten())
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float32)
