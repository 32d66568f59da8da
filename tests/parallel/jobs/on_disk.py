"""A job of ranks whose shares of a table lie in files: training that is saved, killed, and gone on with."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import nn

import hybridrec as hr
from hybridrec.parallel.ranks import ranks
from hybridrec.train.checkpoint import Checkpoints, Contents, load
from hybridrec.train.checkpoint.homes import homes_of, unwrapped

IDS = 60


class Click(nn.Module):
    def __init__(self, path: str | None) -> None:
        super().__init__()
        self.emb = hr.EmbeddingCollection([hr.Table("user", 4, capacity=1000, path=path)], seed=5)
        self.top = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.emb({"user": ids}).flat)[:, 0]


def train(
    folder: str, path: str | None, steps: int, save: int | None = None, resume: bool = False, die: Any = None
) -> dict[str, Any]:
    """Train to this step, and save at another; `die` has the rank that is killed in the midst of a step, and which."""
    torch.manual_seed(0)
    team, model = ranks(), hr.shard(Click(path), pin={"user": "row"})
    assert team is not None
    store = homes_of(unwrapped(model))["emb.user"]
    optimizers = {"dense": torch.optim.SGD(model.parameters(), lr=0.1), "rows": hr.optim.Adagrad(model, lr=0.1)}
    contents = Contents(model, optimizers, {"step": 0})
    there = store.export().ids.tolist()
    if resume:
        latest = Checkpoints(folder).latest()
        assert latest is not None
        load(latest, contents)
    with Checkpoints(folder) as checkpoints:
        for step in range(contents.state["step"] + 1, steps + 1):
            draw = torch.Generator().manual_seed(100 * step + team.rank)
            loss = model(torch.randint(IDS, (8,), generator=draw)).square().mean()
            if die == [team.rank, step]:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            contents.state["step"] = step
            if step == save:
                checkpoints.save(contents, step, wait=True)
    data, top = store.export(), unwrapped(model).top.state_dict()["weight"]
    return {"there": there, "ids": data.ids, "rows": data.rows, "sums": data.state["sum"], "top": top}
