"""What tables look like during a run: rows, hit rate, norms, bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Store

SAMPLE = 4096  # rows whose norms are averaged


def stores(model: nn.Module) -> dict[str, Store]:
    """The stores of all collections inside, by the name of their table, with the path of their module where needed."""
    found = []
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection) and module.fused:
            found += [(path, name, module[name]) for name in module.tables]
    count = Counter(name for _, name, _ in found)
    return {f"{path}.{name}" if path and count[name] > 1 else name: store for path, name, store in found}


def plan(model: nn.Module) -> dict[str, Any]:
    """Which store, rows, dim and bytes each table gets, as JSON values."""
    made = {}
    for name, store in stores(model).items():
        table = store.table
        made[name] = {
            "store": type(store).__name__,
            "rows": None if table.dynamic else table.fixed_rows,
            "capacity": table.capacity,
            "dim": table.dim,
            "dtype": str(table.dtype).removeprefix("torch."),
            "features": list(table.features),
            "bytes": table.dim * table.dtype.itemsize * (table.capacity or table.fixed_rows),
        }
    return {"tables": made}


class TableFigures:
    """Figures of all tables; hit rates are those since the last time that they were taken."""

    def __init__(self, model: nn.Module) -> None:
        self._stores = stores(model)
        dynamic = {name: store for name, store in self._stores.items() if store.table.dynamic}
        self._seen = {name: self._looked_up(store) for name, store in dynamic.items()}

    def take(self, norms: bool = False) -> dict[str, dict[str, float | None]]:
        """Figures by table; the mean norm of rows, from a sample, if asked for; None where nothing is known."""
        return {name: self._of(name, store, norms) for name, store in self._stores.items()}

    def _of(self, name: str, store: Store, norms: bool) -> dict[str, float | None]:
        made: dict[str, float | None] = {"rows": len(store), "bytes": store.memory().get("allocated", 0)}
        if store.table.dynamic:
            before, self._seen[name] = self._seen[name], self._looked_up(store)
            hits, misses = (now - then for now, then in zip(self._seen[name], before, strict=True))
            made["hit_rate"] = hits / (hits + misses) if hits + misses else None
            made["evicted"] = store.counters().get("evicted", 0)
        if norms:
            made["norm"] = _norm(store)
        return made

    def _looked_up(self, store: Store) -> tuple[int, int]:
        counted = store.counters()
        return counted.get("hits", 0), counted.get("misses", 0)


def _norm(store: Store) -> float:
    """The mean L2 norm of the first rows."""
    if not len(store):
        return 0.0
    ids = store.ids()[:SAMPLE] if store.table.dynamic else torch.arange(min(len(store), SAMPLE))
    rows = store.read(ids).rows
    return float(rows.float().norm(dim=1).mean())
