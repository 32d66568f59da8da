"""Tables with a cache, of whose rows a GPU has some and its host the others: how they can be placed."""

from __future__ import annotations

from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import TIERED, Placement


def refuse_tiers(table: Table, placement: Placement) -> None:
    """Raise if a table with a cache cannot be placed so on GPUs; others can.

    Not by columns: steps may have to see whole rows, and holders have the same ones in different slots.

    >>> refuse_tiers(Table("item", dim=8, rows=100, cache=0.2), Placement("item", "row", (0, 1)))
    """
    if table.cache is None:
        return
    if placement.scheme not in TIERED:
        raise ValueError(
            f"{placement}: the table has cache={table.cache!r}, and rows with a cache are not split by columns; pin it "
            f"to {' or '.join(map(repr, TIERED))}, or leave cache= out"
        )
    if placement.where != "device":
        raise ValueError(
            f"{placement}: the table has cache={table.cache!r}, which is on a GPU; leave cache= out, or pin it there: "
            f"pin={{{placement.table!r}: Pin(where='device')}}"
        )
