"""Embeddings: what a collection gives for one block of ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from hybridrec.types import Ragged


class UnknownName(KeyError):
    """A KeyError whose message reads as written, not as the repr of a string."""

    def __str__(self) -> str:
        return str(self.args[0])


class Embeddings(Mapping[str, "Tensor | Ragged"]):
    """The vectors of every feature, in the order of the features as declared.

    `flat` [B, sum(dim)] has the pooled features side by side; `out["item"]` [B, dim] is a piece of it. A feature that
    is not pooled is a Ragged with one vector per id, and no part of `flat`.

    >>> out = Embeddings(("item", "user"), (2, 1), torch.tensor([[1.0, 2.0, 3.0]]), {})
    >>> out["user"]
    tensor([[3.]])
    >>> out
    Embeddings(1 rows, flat [1, 3])
      item  [1, 2]
      user  [1, 1]
    """

    __slots__ = ("_pieces", "dims", "flat", "names", "sequences")

    def __init__(
        self, names: tuple[str, ...], dims: tuple[int, ...], flat: Tensor, sequences: Mapping[str, Ragged]
    ) -> None:
        self.names = names
        self.dims = dims
        self.flat = flat
        self.sequences = sequences
        self._pieces: dict[str, Tensor] | None = None

    @property
    def pooled(self) -> tuple[str, ...]:
        """The features that `flat` holds, in its order."""
        return tuple(name for name in self.names if name not in self.sequences)

    def __getitem__(self, name: str) -> Tensor | Ragged:
        """The feature's vectors: [B, dim], or a Ragged of one vector per id where it is not pooled."""
        if name in self.sequences:
            return self.sequences[name]
        if self._pieces is None:
            self._pieces = self._split()
        if name not in self._pieces:
            raise UnknownName(f"no feature {name!r} among these embeddings; there are {', '.join(self.names)}")
        return self._pieces[name]

    def _split(self) -> dict[str, Tensor]:
        """All pieces by one split, so that backward puts the gradient of `flat` together once."""
        widths = [dim for name, dim in zip(self.names, self.dims, strict=True) if name not in self.sequences]
        return dict(zip(self.pooled, torch.split(self.flat, widths, dim=1), strict=True)) if widths else {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __eq__(self, other: object) -> bool:
        return self is other  # a mapping compares its values, but tensors have no one answer to that

    def __hash__(self) -> int:
        return id(self)

    def to_dict(self) -> dict[str, Tensor | Ragged]:
        """Name to vectors, as a plain dict."""
        return {name: self[name] for name in self.names}

    def __repr__(self) -> str:
        width = max(map(len, self.names), default=0)
        lines = [f"Embeddings({len(self.flat):,} rows, flat {list(self.flat.shape)})"]
        for name, dim in zip(self.names, self.dims, strict=True):
            kind = f"[{len(self.flat)}, {dim}]" if name not in self.sequences else self.sequences[name].describe()
            lines.append(f"{name:{width}}  {kind}")
        return "\n  ".join(lines)
