"""The tables that a model would have and how their rows would be updated, without memory for the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from hybridrec.data.schema import Schema
from hybridrec.embedding import EmbeddingCollection, MultiHash, Table
from hybridrec.models import build, tables_of
from hybridrec.models.tables import SIZES, TIERS
from hybridrec.optim import RowOptimizer
from hybridrec.optim.rule import RowRule

WIDE = "wide."


class Declared(NamedTuple):
    """Tables, and the update rule of each that is trained."""

    tables: list[Table]
    rules: dict[str, RowRule]


def declared(name: str, schema: Schema, config: Mapping[str, Any], optimizer: Any) -> Declared:
    """The tables of the model of this name: it is made with a single row in each, then the sizes are put back.

    `optimizer(model)` makes the row optimizer.

    >>> import pyarrow as pa
    >>> from hybridrec.optim import Adam
    >>> schema = Schema.infer(pa.schema({"user": pa.int64(), "click": pa.int8()}), label="click")
    >>> found = declared("deepfm", schema, {"tables": {"user": {"rows": 10**9}}, "dim": 8}, Adam)
    >>> [(table.name, table.dim, table.rows) for table in found.tables], found.rules["user"].names
    ([('user', 8, 1000000000), ('wide.user', 1, 1000000000)], ('exp_avg', 'exp_avg_sq'))
    """
    options = dict(config.get("tables") or {})
    real = {t.name: t for t in tables_of(schema, config.get("dim", 16), share=config.get("share"), options=options)}
    model = build(name, schema, **{**config, "tables": _single_rows(options, real)})
    tables = [_sized(table, real) for table in _tables(model)]
    rows: RowOptimizer = optimizer(model)
    return Declared(tables, {group["name"]: rows.rule(group) for group in rows.param_groups})


def _single_rows(options: Mapping[str, Any], real: Mapping[str, Table]) -> dict[str, Any]:
    """The options of tables with fixed rows, made small."""
    made = dict(options)
    for name, table in real.items():
        own = {key: value for key, value in options.get(name, {}).items() if key not in (*SIZES, *TIERS)}
        if table.hashes is not None:
            made[name] = {**own, "hashes": MultiHash(table.hashes.rounds, 1)}
        elif not table.dynamic:
            made[name] = {**own, "rows": 1}
    return made


def _tables(model: nn.Module) -> list[Table]:
    collections = [part for part in model.modules() if isinstance(part, EmbeddingCollection)]
    return [table for part in collections for table in part.tables.values()]


def _sized(table: Table, real: Mapping[str, Table]) -> Table:
    like = real.get(table.name) or real.get(table.name.removeprefix(WIDE))
    if like is None or like.dynamic:
        return table
    return replace(table, rows=like.rows, hashes=like.hashes, **{name: getattr(like, name) for name in TIERS})
