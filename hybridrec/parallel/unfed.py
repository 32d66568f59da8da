"""Rows that no gradient has come for, though one has for other features of their table: they must keep still.

A vector comes once for all features that ask for it, and so gradients go back: zeros for what only an unused output had
asked for. Rules such as Adam move a row by a gradient of zero, and one process would leave it alone. So all numbers of
such a row are -0.0 on their way, which those of others are not, and its holder passes it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hybridrec.parallel.routes import Routes

NOTHING = -0.0  # each number of a row without a gradient


def unfed_parts(
    routes: Routes, sequences: Sequence[int], flat: Tensor | None, grads: Sequence[Tensor | None], tables: set[str]
) -> frozenset[int]:
    """The parts that no gradient has come for, of these tables; `sequences` are those that are not pooled."""
    of_sequences = dict(zip(sequences, grads, strict=True))
    return frozenset(
        p for p, part in enumerate(routes.parts) if part.piece.table in tables and of_sequences.get(p, flat) is None
    )


def mark(sums: Tensor, fed: Iterable[Tensor]) -> None:
    """Let rows [n, width] be without a gradient that none of the positions int64 in `fed` leads to.

    >>> rows = torch.tensor([[1.0], [0.0], [-0.0]])
    >>> mark(rows, [torch.tensor([0, 2, -1])])
    >>> unmoved(rows)
    tensor([False,  True, False])
    """
    asked = torch.zeros(len(sums) + 1, dtype=torch.bool, device=sums.device)
    for each in fed:
        asked[torch.where((each >= 0) & (each < len(sums)), each, len(sums))] = True
    sums.add_(0.0)
    sums.masked_fill_(~asked[:-1, None], NOTHING)


def unmoved(rows: Tensor) -> Tensor:
    """Which rows [n, width] no gradient has come for, bool [n]."""
    return ((rows == 0) & rows.signbit()).all(1)
