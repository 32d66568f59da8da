"""A model for people: its tables with rows and bytes, and the parameters of its dense part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from hybridrec.embedding import EmbeddingCollection


def summary(model: nn.Module) -> str:
    """A few lines about any module with collections inside; dynamic tables show the rows that they hold now.

    >>> from hybridrec.embedding import Table
    >>> rows = EmbeddingCollection([Table("item", dim=4, rows=10)])
    >>> print(summary(nn.ModuleDict({"rows": rows, "top": nn.Linear(4, 1)})))
    ModuleDict: 10 rows in 1 table, 160 bytes; 5 dense parameters
      table  dim  rows  bytes  features
      item     4    10    160  item (sum)
      part  parameters
      top            5
    """
    tables = [_table(part, name) for part in _collections(model) for name in part.tables]
    parts = [(name, sum(p.numel() for p in part.parameters())) for name, part in _parts(model)]
    rows, size, dense = sum(t[2] for t in tables), sum(t[3] for t in tables), sum(p[1] for p in parts)
    head = f"{rows:,} rows in {len(tables)} table{'s' * (len(tables) != 1)}, {size:,} bytes; {dense:,} dense parameters"
    shown = [(name, str(dim), f"{held:,}", f"{bytes:,}", features) for name, dim, held, bytes, features in tables]
    lines = _aligned([("table", "dim", "rows", "bytes", "features"), *shown], right=(1, 2, 3))
    lines += _aligned([("part", "parameters"), *((name, f"{count:,}") for name, count in parts)], right=(1,))
    return "\n  ".join([f"{type(model).__name__}: {head}", *lines])


def _collections(model: nn.Module) -> list[EmbeddingCollection]:
    return [part for part in model.modules() if isinstance(part, EmbeddingCollection)]


def _table(collection: EmbeddingCollection, name: str) -> tuple[str, int, int, int, str]:
    """Name, dim, rows now, bytes of rows and their state, features."""
    table, store = collection.tables[name], collection[name]
    memory = store.memory()
    features = ", ".join(f"{feature} ({combiner})" for feature, combiner in table.combiners.items())
    return name, table.dim, len(store), int(memory["rows"] + memory["state"]), features


def _parts(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The parts that hold parameters: those of `net` where there is one, else the module's own."""
    inner = getattr(model, "net", model)
    prefix = "net." if inner is not model else ""
    return [(prefix + name, part) for name, part in inner.named_children() if any(True for _ in part.parameters())]


def _aligned(rows: Sequence[tuple[Any, ...]], right: tuple[int, ...]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    made = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        made.append("  ".join(cells).rstrip())
    return made
