"""Row-wise: rows dealt out over ranks, by the remainder of the id, or by its hash where the table is dynamic."""

from __future__ import annotations

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Placement
from hybridrec.parallel.schemes.scheme import NOTHING, Piece, Scheme


class RowWise(Scheme):
    """For tables of any size. Each distinct row of a batch travels once, and is pooled where it is asked for."""

    def share(self, table: Table, placement: Placement, rank: int) -> Share:
        if rank not in placement.devices:
            return NOTHING
        return Share(placement.devices.index(rank), len(placement.devices))

    def pieces(self, table: Table, placement: Placement) -> tuple[Piece, ...]:
        return (Piece(table.name, placement.devices, 0, table.dim),)
