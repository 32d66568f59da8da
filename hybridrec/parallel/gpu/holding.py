"""Holding: what a rank holds on its GPU of what all ranks may ask for in a lookup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from hybridrec.embedding.gpu.dynamic import Admission
from hybridrec.embedding.gpu.layout import MOST_LAYOUTS, Shapes
from hybridrec.embedding.gpu.lookup import NO_FAULT
from hybridrec.embedding.gpu.tiers import Tiers
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.parallel.gpu.beside import Beside
from hybridrec.parallel.routes import Routes, Unit

if TYPE_CHECKING:
    from hybridrec.parallel.gpu.group import DeviceShardedGroup


class Holding:
    """What this rank holds of a lookup's units: features of bags, then of each rank's rows and copied rows."""

    def __init__(self, routes: Routes, group: DeviceShardedGroup, beside: Beside) -> None:
        self.routes, self.group, self.beside = routes, group, beside
        self.bags, self.rows = routes.bags.held[routes.rank], routes.rows.held[routes.rank]
        asked = [*(routes.rows.units[u] for u in self.rows), *routes.copied.units]
        pooled = [routes.features[routes.bags.units[u].features[0]] for u in self.bags]
        self.specs = tuple(spec._replace(name=f"bags {n}") for n, spec in enumerate(pooled))
        self.specs += tuple(
            FeatureSpec(f"unit {n} of rank {rank}", unit.piece.table, "none")
            for rank in range(routes.world)
            for n, unit in enumerate(asked)
        )
        self.facts = [replace(group.facts(spec.table), hashed=False) for spec in self.specs]
        self.asked = self.facts[len(self.bags) : len(self.bags) + len(asked)]  # of each rank
        self.padding = {n: row for n, unit in enumerate(asked) if (row := _padding(routes, unit)) is not None}
        self.widths = np.array([fact.dim for fact in self.asked], np.int64)
        self.bag_width = sum(fact.dim for fact in self.facts[: len(self.bags)])
        kinds = sorted({(fact.dim, str(fact.dtype)) for fact in self.asked})
        by_kind = [[n for n, f in enumerate(self.asked) if (f.dim, str(f.dtype)) == kind] for kind in kinds]
        self.kinds = [(np.array(mine), self.asked[mine[0]]) for mine in by_kind]  # what one launch copies
        self.rows_of = {name: store.reach for name, store in group.stores.items()}
        tiered = [spec for spec in self.specs if spec.table in group.tiered]
        self.tiers = Tiers(group.tiered, tiered, group.gate)
        self.admission = Admission(group, self.specs, [feature.table for feature in routes.features])
        self.faults = torch.full((len(self.specs),), NO_FAULT, device=group.device)
        self._shapes: dict[object, Shapes] = {}

    def shapes(self, fixed: tuple[int | None, ...], batch: int) -> Shapes:
        """Layouts of what all ranks ask for, given the hotness of bags and the rows of all batches together."""
        if (fixed, batch) not in self._shapes:
            if len(self._shapes) >= MOST_LAYOUTS:
                self._shapes.clear()
            rest = len(self.specs) - len(fixed)
            lines = [fixed[:n].count(None) for n in range(len(fixed))]
            given = self.specs, self.facts, [*fixed, *[1] * rest], [*lines, *[0] * rest]
            self._shapes[fixed, batch] = Shapes(*given, batch, self.group.device, self.group.sizes)
        return self._shapes[fixed, batch]


def _padding(routes: Routes, unit: Unit) -> int | None:
    """The row here of an id that takes no gradient."""
    padding, holders = routes.padding(unit), unit.piece.holders
    if padding is None or unit.piece.copied:
        return padding
    return padding // len(holders) if holders.index(routes.rank) == padding % len(holders) else None
