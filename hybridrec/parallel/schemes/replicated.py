"""Replicated: the whole table on every rank. Lookups stay at home; the gradients of a row go to all ranks."""

from __future__ import annotations

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Placement
from hybridrec.parallel.schemes.scheme import Piece, Scheme


class Replicated(Scheme):
    """For small tables. All copies take the same step: sums are made in the order of the ranks everywhere."""

    def share(self, table: Table, placement: Placement, rank: int) -> Share:
        return Share(saves=rank == 0)

    def pieces(self, table: Table, placement: Placement) -> tuple[Piece, ...]:
        return (Piece(table.name, placement.devices, 0, table.dim, copied=True),)
