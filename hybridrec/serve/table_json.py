"""A table's declaration as JSON values, as far as reading its rows needs it."""

from __future__ import annotations

from typing import Any

import torch

from hybridrec.embedding import MultiHash, Table


def to_json(table: Table) -> dict[str, Any]:
    """Size, type, features and combiners; not how rows begin, are let in or evicted: an exported table stays as it is.

    >>> to_json(Table("tag", dim=4, rows=10, combiner="mean", dtype=torch.float16))["dtype"]
    'float16'
    """
    return {
        "name": table.name,
        "dim": table.dim,
        "dtype": str(table.dtype).removeprefix("torch."),
        "combiner": table.combiners,
        "dynamic": table.dynamic,
        "rows": table.rows,
        "hashes": None if table.hashes is None else [table.hashes.rounds, table.hashes.size],
        "out_of_range": table.out_of_range,
    }


def from_json(made: dict[str, Any], rows: int) -> Table:
    """The table that holds `rows` exported rows.

    >>> from_json(to_json(Table("user", dim=4, capacity=10**9)), rows=77)
    Table('user', dim=4, capacity=77, combiner={'user': 'sum'})
    """
    size: dict[str, Any] = {"rows": made["rows"], "out_of_range": made["out_of_range"]}
    if made["dynamic"]:
        size = {"capacity": max(rows, 1)}
    elif made["hashes"] is not None:
        size = {"hashes": MultiHash(*made["hashes"])}
    return Table(
        made["name"],
        made["dim"],
        features=tuple(made["combiner"]),
        combiner=made["combiner"],
        dtype=getattr(torch, made["dtype"]),
        **size,
    )
