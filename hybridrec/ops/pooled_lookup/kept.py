"""Rows that a lookup keeps for the gradient of the weights of its ids, where nothing holds them until then.

That gradient reads rows again. Those of a fixed table never go, and those that a step is awaited for stay until it.
Rows of a dynamic table that is not trained, or that eval has looked up, may go with the very next lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec import _native

if TYPE_CHECKING:
    from hybridrec.ops.pooled_lookup.op import Lookup


def floats_kept(lookup: Lookup, kept: Sequence[int], pick: Sequence[int], starts: Sequence[int]) -> int:
    """How many numbers the rows of these features have, given where a block has each of its features."""
    return sum((starts[pick[i] + 1] - starts[pick[i]]) * lookup.dims[i] for i in kept)


def keep_rows(
    lookup: Lookup, kept: Sequence[int], pick: Sequence[int], starts: Sequence[int], slots: Tensor, rows: Tensor
) -> None:
    """Copy the rows of the ids of these features, one after another; zeros for those without a row."""
    at = 0
    for i in kept:
        start, stop = starts[pick[i]], starts[pick[i] + 1]
        native = lookup.group.stores[lookup.features[i].table].native
        native.gather(slots[start:stop].data_ptr(), stop - start, rows[at:].data_ptr())
        at += (stop - start) * lookup.dims[i]


def with_kept(
    lookup: Lookup, kept: Sequence[int], pick: Sequence[int], starts: Sequence[int], slots: Tensor, rows: Tensor
) -> tuple[Any, Tensor]:
    """The tables of a lookup with what was kept in place of those of these features, and the slots in them."""
    slots, at, views = slots.clone(), 0, []
    place = {name: n for n, name in enumerate(lookup.group.names)}
    specs = [(place[f.table], f.combiner, f.group) for f in lookup.features]
    for i in kept:
        start, stop = starts[pick[i]], starts[pick[i] + 1]
        view = _native.ViewTable(lookup.dims[i])
        view.show(rows[at:].data_ptr(), stop - start)
        specs[i] = (len(place) + len(views), *specs[i][1:])
        slots[start:stop] = torch.arange(stop - start, dtype=torch.int32)
        views.append(view)
        at += (stop - start) * lookup.dims[i]
    return _native.TableSet([*lookup.group.natives, *views], specs), slots
