"""Tables that a card cannot hold beside the others: which of them get a cache there, and how large."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.embedding.gpu import caches, memory
from hybridrec.embedding.hash_store import capacity_of
from hybridrec.embedding.store import WHOLE
from hybridrec.ops.row_cache.cache import MOST_ROWS
from hybridrec.optim.rule import RowRule
from hybridrec.train.row_rules import MOST, NONE, Rules, collections_of

log = logging.getLogger("hybridrec.train")


class Held(NamedTuple):
    """A fixed table of which a card is to have rows and state."""

    collection: EmbeddingCollection
    table: Table
    rule: RowRule

    @property
    def bytes(self) -> int:
        """What it has yet to take of the card."""
        rows = 0 if self.collection.allocated else memory.table_bytes(self.table)
        return rows + memory.state_bytes(self.table, self.rule)

    @property
    def cold_bytes(self) -> int:
        """What it has yet to take of the host."""
        rows = memory.cold_bytes(self.table) if self.collection.allocated else 0
        return memory.cold_bytes(self.table, self.rule) - rows

    @property
    def free(self) -> bool:
        """Whether it can have a cache, and nobody has said where its rows are."""
        table = self.table
        if table.rows is None or table.rows > MOST_ROWS:
            return False
        return table.cache is None and table.where is None and not self.collection.allocated

    def with_cache(self, hot: int) -> Held:
        """The same with so many hot rows."""
        return self._replace(table=replace(self.table, cache=hot)) if hot < self.table.fixed_rows else self


def held_on(model: nn.Module, device: torch.device, rules: Rules) -> list[Held]:
    """The fixed tables of a card with their rules; where one is not known, the rule that keeps most.

    Tables on the host and on servers take nothing of the card.
    """
    return [
        Held(part, table, rules.get((path, table.name), MOST if table.trainable else NONE))
        for path, part in collections_of(model)
        for table in (part.tables.values() if part.device == device else ())
        if not (table.on_host or table.dynamic)
    ]


def growing_on(model: nn.Module, device: torch.device) -> int:
    """Bytes that dynamic tables of a card may come to, with the rule that keeps most beside a row."""
    tables = [table for _, part in collections_of(model) if part.device == device for table in part.tables.values()]
    return sum(
        memory.dynamic_bytes(
            table, min(capacity_of(table, WHOLE), memory.MOST_SLOTS), MOST if table.trainable else NONE
        )
        for table in tables
        if table.dynamic and not table.on_host
    )


def needed_by(held: Iterable[Held]) -> int:
    """Bytes that tables have yet to take of their card."""
    return sum(each.bytes for each in held)


def chosen(held: list[Held], room: int) -> list[Held]:
    """The tables, some of those that are free with a cache, so that all fit if that is possible."""
    free = [each for each in held if each.free]
    sizes = [
        caches.Candidate(table.fixed_rows, each.bytes // table.fixed_rows, len(table.features))
        for each in free
        for table in [each.table]
    ]
    hot = caches.caches(sizes, room - needed_by(each for each in held if not each.free))
    if hot is None:
        return held
    given = {id(each): each.with_cache(rows) for each, rows in zip(free, hot, strict=True)}
    return [given.get(id(each), each) for each in held]


def caution(model: nn.Module, batch_size: int) -> None:
    """Say which tables may have too few hot rows for two batches, of which rows are in flight at a time.

    It is a caution: how many ids of a batch repeat is not known here, and a lookup that lacks rows is an error.
    """
    parts = [part for _, part in collections_of(model) if part.device.type == "cuda"]
    for table in [table for part in parts for table in part.tables.values() if table.cache is not None]:
        needed = min(table.fixed_rows, 2 * batch_size * len(table.features))
        hot = table.cached(table.fixed_rows)
        if hot < needed:
            log.warning(
                f"table {table.name!r} has {hot:,} hot rows, and two batches of {batch_size:,} need up to {needed:,} "
                "if no ids repeat: where lookups lack rows, give it a larger cache=, or take smaller batches"
            )
