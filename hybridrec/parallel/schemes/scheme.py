"""Scheme: what every sharding scheme says of a table, and Piece, the part of a table that answers together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Placement


@dataclass(frozen=True)
class Piece:
    """`width` columns of a table from `column` on, whose rows are dealt out over the ranks `holders`.

    Holders that `pool` take whole bags and answer with one vector each; others send rows, each distinct one once. Of a
    piece that is `copied` every rank has all rows: it asks itself, and tells its gradients to all. The holders of a
    piece that is `served` are servers, and ids find theirs by `hybridrec.server.placement`.
    """

    table: str
    holders: tuple[int, ...]
    column: int
    width: int
    pools: bool = False
    copied: bool = False
    served: bool = False


class Scheme(ABC):
    """A way to place a table on ranks."""

    @abstractmethod
    def share(self, table: Table, placement: Placement, rank: int) -> Share:
        """What a rank holds."""

    @abstractmethod
    def pieces(self, table: Table, placement: Placement) -> tuple[Piece, ...]:
        """The pieces that make up the table, in the order of their columns."""


NOTHING = Share(empty=True)
