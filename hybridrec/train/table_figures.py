"""What tables look like during a run: rows, hit rate, norms, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.embedding import EmbeddingCollection, Store
from hybridrec.embedding.store import StoreFigures
from hybridrec.parallel.ranks import Ranks

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
            "where": _where(store),
            "cache": None if table.cache is None else table.cached(table.fixed_rows),
            "bytes": table.dim * table.dtype.itemsize * (table.capacity or table.fixed_rows),
        }
    return {"tables": made}


def _where(store: Store) -> str:
    """Where rows are, as plans have it."""
    return (store.table.where or "device") if store.here else "server"


class TableFigures:
    """Figures of all tables, of all ranks together.

    Hit rates, and bytes that moved between a card and its host, are those since the last time that they were taken.
    """

    def __init__(self, model: nn.Module, ranks: Ranks | None = None) -> None:
        self._stores, self._ranks = stores(model), ranks
        asked = {name: store.ask_figures() for name, store in self._stores.items() if _counts(store)}
        self._seen = {name: _looked_up(figures()) for name, figures in asked.items()}

    def take(self, norms: bool = False) -> dict[str, dict[str, float | None]]:
        """Figures by table; the mean norm of rows, from a sample, if asked for; None where nothing is known."""
        own = self._own(norms)
        if self._ranks is not None:
            everyones = self._ranks.all_told(own)
            own = {name: {key: _joined([each[name][key] for each in everyones]) for key in own[name]} for name in own}
        if apart := [name for name, figures in own.items() if sum(figures.pop("columns", ()))]:
            for name, norm in zip(apart, self._whole_norms(apart), strict=True):
                own[name]["norm"] = [norm, 1.0]
        return {name: _shown(figures) for name, figures in own.items()}

    def _own(self, norms: bool) -> dict[str, dict[str, list[float]]]:
        """Those that this process finds. Servers are asked about all tables at once: each answer takes its time."""
        asked = {name: store.ask_figures() for name, store in self._stores.items()}
        return {name: self._of(name, store, asked[name](), norms) for name, store in self._stores.items()}

    def _whole_norms(self, names: Sequence[str]) -> list[float]:
        """The mean norms of the first rows of tables whose columns lie on several ranks; all ranks ask for the same."""
        assert self._ranks is not None, "alone, a process has all columns"
        sums = torch.zeros(len(names), SAMPLE, dtype=torch.float64)
        for line, store in zip(sums, (self._stores[name] for name in names), strict=True):
            if len(store):
                rows = _first_rows(store)
                line[: len(rows)] = rows.double().square().sum(1)
        counts = [min(SAMPLE, self._stores[name].table.fixed_rows) for name in names]
        return [float(line[:n].sqrt().mean()) for line, n in zip(self._ranks.sum(sums), counts, strict=True)]

    def _of(self, name: str, store: Store, found: StoreFigures, norms: bool) -> dict[str, list[float]]:
        """Numbers that can be added up over ranks."""
        share = store.share
        mine = found.rows if share.saves and share.column == 0 else 0  # other columns are of the same rows
        told = store.here or share.saves  # of rows on servers, one rank tells for all
        made: dict[str, list[float]] = {"rows": [mine], "bytes": [found.bytes * told]}
        if _counts(store):
            before, self._seen[name] = self._seen[name], _looked_up(found)
            hits, misses, moved = (now - then for now, then in zip(self._seen[name], before, strict=True))
            made["hit_rate"] = [hits, hits + misses]
            made |= {"bytes_each_way": [moved]} if store.table.cache is not None else {}
        if store.table.dynamic:
            made["evicted"] = [found.counters.get("evicted", 0) * told]
        if norms:
            columns = store.dim < store.table.dim  # a part of them
            made["norm"] = [0.0, 0.0] if columns else [_norm(store) * mine, mine]
            made["columns"] = [float(columns)]
        return made


def _counts(store: Store) -> bool:
    """Whether its lookups may miss rows: they have none yet, or are not in the cache."""
    return store.table.dynamic or store.table.cache is not None


def _looked_up(figures: StoreFigures) -> tuple[int, int, int]:
    """Ids that had a row where they were looked up, those that had none, and bytes that moved for them each way."""
    found = figures.counters
    if "cold_ids" in found:
        return found["ids"] - found["cold_ids"], found["cold_ids"], found["bytes_each_way"]
    return found.get("hits", 0), found.get("misses", 0), 0


def _joined(parts: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) for values in zip(*parts, strict=True)]


def _shown(figures: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """Sums as they are, and shares of sums; None of nothing, but a norm of nothing is 0."""
    made: dict[str, float | None] = {}
    for name, (value, *total) in figures.items():
        nothing = 0.0 if name == "norm" else None
        made[name] = value if not total else (value / total[0] if total[0] else nothing)
    return made


def _norm(store: Store) -> float:
    """The mean L2 norm of the first rows."""
    return float(_first_rows(store).norm(dim=1).mean()) if len(store) else 0.0


def _first_rows(store: Store) -> Tensor:
    """Some rows as float32, on all ranks with columns of a table the same."""
    in_order = store.share.count == 1 and not store.table.dynamic
    ids = torch.arange(min(len(store), SAMPLE)) if in_order else store.some_ids(SAMPLE)
    return store.read(ids).rows.float()
