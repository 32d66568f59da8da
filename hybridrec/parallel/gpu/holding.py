"""Holding: what a rank holds on its GPU of what all ranks may ask for in a lookup, and where that lies."""

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
        self.units = slice(len(self.bags), len(self.bags) + len(asked))  # of one rank, among `specs`
        self.lying = Lying(self)
        facts = self.lying.facts[self.units]
        self.padding = {n: row for n, unit in enumerate(asked) if (row := _padding(routes, unit)) is not None}
        self.widths = np.array([fact.dim for fact in facts], np.int64)
        self.bag_width = sum(fact.dim for fact in self.lying.facts[: len(self.bags)])
        kinds = sorted({(fact.dim, str(fact.dtype)) for fact in facts})
        by_kind = [[n for n, f in enumerate(facts) if (f.dim, str(f.dtype)) == kind] for kind in kinds]
        self.kinds = [(np.array(mine), facts[mine[0]]) for mine in by_kind]  # what one launch copies
        tiered = [spec for spec in self.specs if spec.table in group.tiered]
        self.tiers = Tiers(group.tiered, tiered, group.gate)
        self.admission = Admission(group, self.specs, [feature.table for feature in routes.features])
        self.faults = torch.full((len(self.specs),), NO_FAULT, device=group.device)

    def now(self) -> Lying:
        """Where its rows lie when they are looked up: dynamic tables that have grown have other memory."""
        if self.lying.ground is not self.group.ground:
            self.lying = Lying(self)
        return self.lying


class Lying:
    """Where the rows of a holding lie, and how kernels see what all ranks ask for there.

    Ids that go ahead are laid out by another thread, on a stream of its own, for what a lookup last knew. Their lookup
    sees whether that still holds.
    """

    def __init__(self, holding: Holding) -> None:
        self._specs, group = holding.specs, holding.group
        self.ground, self._of = group.ground, (group.device, group.sizes)
        self.facts = [replace(group.facts(spec.table), hashed=False) for spec in self._specs]
        self.addresses = np.array([fact.address for fact in self.facts[holding.units]], np.int64)
        self.rows_of = {name: len(rows) for name, rows in self.ground.rows.items()}
        self._shapes: dict[object, Shapes] = {}

    def shapes(self, fixed: tuple[int | None, ...], batch: int) -> Shapes:
        """Layouts of what all ranks ask for, given the hotness of bags and the rows of all batches together.

        They are kept for who asks again, on the same stream.
        """
        found = self._shapes.get((fixed, batch))
        if found is None:
            if len(self._shapes) >= MOST_LAYOUTS:
                self._shapes.clear()
            found = self._shapes[fixed, batch] = self.shapes_once(fixed, batch)
        return found

    def shapes_once(self, fixed: tuple[int | None, ...], batch: int) -> Shapes:
        """The same for any stream."""
        rest = len(self._specs) - len(fixed)
        lines = [fixed[:n].count(None) for n in range(len(fixed))]
        return Shapes(self._specs, self.facts, [*fixed, *[1] * rest], [*lines, *[0] * rest], batch, *self._of)


def _padding(routes: Routes, unit: Unit) -> int | None:
    """The row here of an id that takes no gradient."""
    padding, holders = routes.padding(unit), unit.piece.holders
    if padding is None or unit.piece.copied:
        return padding
    return padding // len(holders) if holders.index(routes.rank) == padding % len(holders) else None
