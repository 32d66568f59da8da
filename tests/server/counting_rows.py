"""Rows that count the updates that they have taken, so that each lookup tells how many it has seen."""

from __future__ import annotations

from typing import Any

import hybridrec as hr
from hybridrec.embedding import Constant
from hybridrec.parallel.ranks import ranks
from hybridrec.server.client import Servers
from tests.server.direct import delayed

IDS = list(range(40))  # that every batch has


def count(servers: Servers, staleness: int, steps: int, ahead: int) -> dict[str, Any]:
    """Each step adds 1 to every row: what lookups have seen, by step, and what the rows are in the end."""
    emb: Any = hr.EmbeddingCollection([hr.Table("n", dim=1, capacity=100, init=Constant(0.0), combiner="none")])
    emb = hr.shard(emb, servers=servers, staleness=staleness)
    rows = hr.optim.SGD(emb, lr=1.0)
    world = 1 if ranks() is None else emb.ranks.world
    blocks = [hr.IdBlock.from_lists({"n": [[one] for one in IDS]}) for _ in range(steps)]
    seen: list[list[float]] = []
    for step, block in enumerate(blocks):
        for coming in (blocks[: ahead + 1] if step == 0 else blocks[step + ahead : step + ahead + 1]) if ahead else ():
            emb.prepare(coming)
        found = emb(block)["n"].values[:, 0]
        seen.append(found.detach().aminmax())
        (-world * found.sum()).backward()  # the loss of a rank counts by its share
        rows.step()
    emb.group.settle()
    final = emb.lookup("n", IDS)[:, 0]
    return {"seen": [[float(least), float(most)] for least, most in seen], "final": final}


def count_on_ranks(addresses: list[str], staleness: int, steps: int, delay: float) -> dict[str, Any]:
    """The same on this rank, with servers that are some time away."""
    world = ranks()
    assert world is not None
    with delayed(Servers.connect(addresses), delay, seed=10 * world.rank) as servers:
        return count(servers, staleness, steps, ahead=max(1, staleness))
