"""Rows that a lookup keeps for the gradient of the weights of its ids, where nothing holds them until then.

Those of dynamic tables that are not trained, or that eval has looked up: the next lookup may give their slots away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu.layout import Layout
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.features import of as line
from hybridrec.types import IdBlock
from hybridrec.types.id_block import NO_ID

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.lookup import Looked


def kept_rows(
    block: IdBlock, features: Sequence[FeatureSpec], stores: Mapping[str, Any], tables: set[str]
) -> dict[int, Tensor]:
    """The rows [n, dim] of the slots of each feature of these tables, by its place; any row for a missing one."""
    return {
        place: stores[feature.table].there[block.values[_span(block, feature)].clamp(min=0)]
        for place, feature in enumerate(features)
        if feature.table in tables
    }


def with_kept(looked: Looked) -> Looked:
    """A lookup of what was kept, and of the tables of the other features."""
    if not looked.kept:
        return looked
    values, order = looked.block.values.clone(), looked.layout.order
    maxima = [place for place in order if looked.features[place].combiner == "max"]
    lines = looked.layout.features.clone(), looked.layout.maxima.clone()
    for place, rows in looked.kept.items():
        mine = _span(looked.block, looked.features[place])
        own = torch.arange(len(rows), device=values.device)
        values[mine] = torch.where(values[mine] >= 0, own, NO_ID)
        for each, places in zip(lines, (order, maxima), strict=True):
            if place in places:
                each[places.index(place), line.ROWS] = rows.data_ptr()
                each[places.index(place), line.SIZE] = len(rows)
    layout: Layout = replace(looked.layout, features=lines[0], maxima=lines[1])
    return replace(looked, block=replace(looked.block, values=values), layout=layout)


def _span(block: IdBlock, feature: FeatureSpec) -> slice:
    at = block.names.index(feature.name)
    return slice(block.starts[at], block.starts[at + 1])
