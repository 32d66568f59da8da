"""Tables on servers that several ranks save and load: jobs for a pool of ranks, and a program to be killed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import hybridrec as hr
from hybridrec.embedding import Constant, MinCount
from hybridrec.parallel.ranks import leave, ranks
from hybridrec.server.config import ServersConfig
from hybridrec.train.checkpoint import Checkpoints, Contents, load
from hybridrec.train.checkpoint.homes import homes_of, unwrapped
from tests.train.started import meet

IDS = 3000  # of the run that is killed


class Run:
    """A model on servers, or here, in training. Rows of `user` are let in when they have come twice."""

    def __init__(self, addresses: list[str]) -> None:
        where = "server" if addresses else None
        tables = [
            hr.Table("item", dim=4, capacity=2000, where=where),
            hr.Table("user", dim=2, capacity=2000, eviction="lfu", admission=MinCount(2), where=where),
            hr.Table("shop", dim=3, rows=90, where=where),
        ]
        emb = hr.EmbeddingCollection(tables, seed=5)
        self.model: Any = hr.shard(emb, servers=addresses) if addresses else emb
        self.rows = hr.optim.Adagrad(self.model, lr=0.1)

    def train(self, steps: int) -> None:
        team = ranks()
        for step in range(steps):
            draw = torch.Generator().manual_seed(100 * step + (0 if team is None else team.rank))
            ids = {name: torch.randint(60, (8,), generator=draw) for name in ("item", "user", "shop")}
            self.model(ids).flat.square().mean().backward()
            self.rows.step()
            self.rows.zero_grad()

    def contents(self) -> Contents:
        return Contents(self.model, {"rows": self.rows})

    def held(self) -> dict[str, Any]:
        """All that is known of the rows, and the counts for admission."""
        found: dict[str, Any] = {}
        for name, store in homes_of(unwrapped(self.model)).items():
            now = store.snapshot()
            order = now.data.ids.argsort()
            columns = [now.data.ids, now.data.rows, *now.data.state.values(), now.data.touched]
            found[name] = [part[order].tolist() for part in columns if part is not None] + [now.clock]
            found[f"{name} counts"] = None if now.sketch is None else now.sketch.tolist()
        return found


def saved(addresses: list[str], folder: str) -> dict[str, Any]:
    """What servers held when they were saved; meanwhile training went on."""
    run = Run(addresses)
    run.train(6)
    then = run.held()
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(run.contents(), 6)
        run.train(6)
    return then


def loaded(addresses: list[str], path: str) -> dict[str, Any]:
    """What servers hold once a checkpoint is loaded, over rows of another run."""
    run = Run(addresses)
    run.train(2)
    load(path, run.contents())
    return run.held()


def save_for_ever(addresses: list[str], folder: Path) -> None:
    """Train and save until killed, a checkpoint per step, each with rows of one value only."""
    table = hr.Table("n", dim=16, capacity=2 * IDS, init=Constant(0.0))
    model = hr.shard(hr.EmbeddingCollection([table]), servers=ServersConfig(addresses, deadline=10))
    rows = hr.optim.SGD(model, lr=1.0)
    team = ranks()
    assert team is not None
    mine = torch.arange(team.rank, IDS, team.world)
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in range(1, 1000):
            (-2 * model({"n": mine}).flat.sum()).backward()  # a half of the batch counts a half
            rows.step()
            rows.zero_grad()
            checkpoints.save(Contents(model), step)
            print(step, flush=True)


if __name__ == "__main__":
    meet(Path(sys.argv[2]))
    hr.init(timeout=10)
    save_for_ever(sys.argv[1].split(","), Path(sys.argv[2]))
    leave()
