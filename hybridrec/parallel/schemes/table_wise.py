"""Table-wise: the whole table on one rank, which pools the bags of all."""

from __future__ import annotations

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Placement
from hybridrec.parallel.schemes.scheme import NOTHING, Piece, Scheme


class TableWise(Scheme):
    """For tables that fit a rank. A bag of many ids comes back as one vector."""

    def share(self, table: Table, placement: Placement, rank: int) -> Share:
        return Share() if rank == placement.devices[0] else NOTHING

    def pieces(self, table: Table, placement: Placement) -> tuple[Piece, ...]:
        return (Piece(table.name, placement.devices, 0, table.dim, pools=True),)
