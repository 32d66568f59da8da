"""A job of trainers that do not say the same."""

from __future__ import annotations

import hybridrec as hr
from hybridrec.parallel.ranks import ranks


def shard(addresses: list[str]) -> None:
    """Every trainer has another staleness."""
    world = ranks()
    assert world is not None
    emb = hr.EmbeddingCollection([hr.Table("user", dim=4, capacity=100)])
    hr.shard(emb, servers=addresses, staleness=world.rank)
