"""Ids that a fixed table has no row for: an error, a row found by hashing, or zeros, as the table says."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec.embedding.id_hash import hashed_rows
from hybridrec.embedding.table import Table

REMEDY = "give the table out_of_range='hash' or 'zero', more rows=, or capacity= to make it dynamic"


def resolve(table: Table, ids: Tensor, feature: str | None = None) -> Tensor:
    """The row of every id, int64 [N]; -1 where the table gives zeros.

    >>> resolve(Table("item", 4, rows=10, out_of_range="zero"), torch.tensor([3, 10, -1]))
    tensor([ 3, -1, -1])
    """
    outside = (ids < 0) | (ids >= table.fixed_rows)
    if not bool(outside.any()):
        return ids
    if table.out_of_range == "zero":
        return torch.where(outside, -1, ids)
    if table.out_of_range == "hash":
        return torch.where(outside, hashed_rows(ids, table.fixed_rows), ids)
    position = int(outside.nonzero()[0, 0])
    raise out_of_range_error(table, feature, position, int(ids[position]))


def out_of_range_error(
    table: Table, feature: str | None, position: int, value: int, remedy: str | None = None
) -> ValueError:
    """What to raise for an id beyond the rows: where it is, what the rule is, what to do."""
    where = f"position {position}" if feature is None else f"position {position} of feature {feature!r}"
    remedy = remedy_for(value, remedy or REMEDY)
    return ValueError(f"id {value} at {where} is outside table {table.name!r}, 0 … {table.fixed_rows - 1}; {remedy}")


def remedy_for(value: int, remedy: str) -> str:
    """What to do about an id outside a table: one that stands for a null is not to be hashed.

    >>> remedy_for(-(2**63), "correct the ids")
    'this id stands for a null: choose another null policy when loading the column, or correct the ids'
    """
    from hybridrec.data.schema import NULL_ID

    if value != NULL_ID:
        return remedy
    return f"this id stands for a null: choose another null policy when loading the column, or {remedy}"
