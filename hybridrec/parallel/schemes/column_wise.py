"""Column-wise: columns split over ranks; each pools its slice of the bags of all."""

from __future__ import annotations

from itertools import accumulate

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Placement
from hybridrec.parallel.schemes.scheme import NOTHING, Piece, Scheme


class ColumnWise(Scheme):
    """For wide tables with many ids in a bag: the work of every lookup is shared out evenly."""

    def share(self, table: Table, placement: Placement, rank: int) -> Share:
        for piece in self.pieces(table, placement):
            if rank in piece.holders:
                return Share(column=piece.column, width=piece.width)
        return NOTHING

    def pieces(self, table: Table, placement: Placement) -> tuple[Piece, ...]:
        starts = accumulate(placement.columns, initial=0)
        slices = zip(placement.devices, starts, placement.columns, strict=False)
        return tuple(Piece(table.name, (rank,), start, width, pools=True) for rank, start, width in slices)
