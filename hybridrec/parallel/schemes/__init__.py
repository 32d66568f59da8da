"""Sharding schemes: which part of a table each rank holds, and how others get at it. One file each."""

from __future__ import annotations

from hybridrec.parallel.plan import Placement
from hybridrec.parallel.schemes.column_wise import ColumnWise
from hybridrec.parallel.schemes.replicated import Replicated
from hybridrec.parallel.schemes.row_wise import RowWise
from hybridrec.parallel.schemes.scheme import Piece, Scheme
from hybridrec.parallel.schemes.table_wise import TableWise

__all__ = ["Scheme", "Piece", "scheme_of"]

_SCHEMES: dict[str, Scheme] = {
    "replicated": Replicated(),
    "table": TableWise(),
    "row": RowWise(),
    "column": ColumnWise(),
}


def scheme_of(placement: Placement) -> Scheme:
    """The scheme of a placement.

    >>> from hybridrec.embedding import Table
    >>> item, placement = Table("item", dim=6, rows=10), Placement("item", "column", (0, 2), columns=(4, 2))
    >>> scheme_of(placement).share(item, placement, rank=2)
    Share(index=0, count=1, column=4, width=2, empty=False, saves=True, servers=0)
    """
    return _SCHEMES[placement.scheme]
