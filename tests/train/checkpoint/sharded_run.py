"""A training run on several ranks, for tests of checkpoints: jobs for a pool of ranks, and a program to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import hybridrec as hr
from hybridrec.embedding import LFU, MinCount
from hybridrec.parallel.ranks import leave, ranks
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, LoadReport, load
from hybridrec.train.checkpoint.homes import homes_of, unwrapped
from tests.train.started import meet

TABLES = [
    hr.Table("item", 6, rows=40, dtype=torch.bfloat16),
    hr.Table("tag", 4, rows=30),
    hr.Table("page", 4, rows=20),
    hr.Table("user", 4, capacity=1000, eviction=LFU(), admission=MinCount(2)),
]
PIN = {"item": "row", "tag": "column", "page": "table", "user": "row", "word": "row"}
SIZES = {"item": 40, "tag": 30, "page": 20, "user": 25}


class Click(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = hr.EmbeddingCollection(TABLES, seed=5)
        self.word = nn.Embedding(12, 3)
        self.top = nn.Linear(sum(self.emb.dims) + 3, 1)

    def forward(self, ids: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.top(torch.cat([self.emb(ids).flat, self.word(ids["item"] % 12)], dim=1))[:, 0]


class Run:
    """A model on this rank, in training."""

    def __init__(self, pin: dict[str, str] | None = None) -> None:
        torch.manual_seed(0)
        self.model = hr.shard(hr.fuse(Click()), pin=pin or PIN)
        self.optimizers = {
            "dense": torch.optim.Adam(self.model.parameters(), lr=0.01),
            "rows": hr.optim.Adagrad(self.model, lr=0.1, tables=["page", "user", "word"]),
            "whole": hr.optim.RowWiseAdagrad(self.model, lr=0.1, tables=["item", "tag"]),
        }
        self.step = 0

    def train(self, steps: int) -> None:
        team = ranks()
        for _ in range(steps):
            draw = torch.Generator().manual_seed(100 * self.step + (0 if team is None else team.rank))
            ids = {name: torch.randint(size, (8,), generator=draw) for name, size in SIZES.items()}
            self.model(ids).square().mean().backward()
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            self.step += 1

    def contents(self) -> Contents:
        return Contents(self.model, self.optimizers, {"step": self.step})

    def resume(self, path: Path | str | None) -> LoadReport:
        assert path is not None
        contents = self.contents()
        report = load(path, contents)
        self.step = contents.state["step"]
        return report

    def held(self) -> dict[str, object]:
        """All that this rank holds, as JSON values."""
        found: dict[str, object] = {
            name: part.tolist() for name, part in unwrapped(self.model).top.state_dict().items()
        }
        for name, store in homes_of(unwrapped(self.model)).items():
            data, sketch = store.export(), store.snapshot().sketch
            scores = [None if part is None else part.tolist() for part in (data.touched, data.counts)]
            state = {key: part.tolist() for key, part in data.state.items()}
            found[name] = [data.ids.tolist(), data.rows.float().tolist(), state, store.clock, *scores]
            found[f"{name} counts"] = None if sketch is None else int(sketch.long().sum())
        rows = [self.optimizers[name] for name in ("rows", "whole")]
        return found | {"steps": [each.steps_of(table) for each in rows for table in each.tables]}


def save_and_resume(folder: str) -> dict[str, object]:
    """Whether a run that was loaded goes on as the one that was saved; and what this rank held when it was saved."""
    run = Run()
    run.train(3)
    then = run.held()
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(run.contents(), run.step)
        run.train(3)  # while it is written
    other = Run()
    report = other.resume(checkpoints.latest())
    same = other.held() == then
    other.train(3)
    return {"then": then, "same": same, "goes on": other.held() == run.held(), "complete": report.complete}


def resume(path: str, pin: dict[str, str]) -> dict[str, object]:
    """What this rank holds once a checkpoint is loaded; only rank 0 knows which."""
    team, run = ranks(), Run(pin)
    assert team is not None
    run.resume(path if team.rank == 0 else "/no/such/checkpoint")
    return run.held()


def refusal(path: str, pin: dict[str, str]) -> dict[str, object]:
    """What this rank says of a checkpoint that cannot be loaded, and whether all is as before."""
    run = Run(pin)
    before = run.held()
    try:
        run.resume(path)
    except CheckpointError as error:
        return {"error": str(error), "same": run.held() == before}
    return {}


def broken_off(path: str, rank: int) -> str:
    """What this rank says where the rows of a table cannot be read on one rank, once all was compared."""
    run, team = Run(), ranks()
    assert team is not None

    def fails(*_: object) -> None:
        raise OSError("the disk is gone")

    if team.rank == rank:
        homes_of(unwrapped(run.model))["emb.page"].restore = fails
    try:
        run.resume(path)
    except (CheckpointError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def save_for_ever(folder: Path) -> None:
    """Train and save until killed, a checkpoint per step, each with rows of one value only."""
    table = hr.Table("item", 16, rows=400_000)
    model = hr.shard(hr.EmbeddingCollection([table]), pin={"item": "row"})
    store = homes_of(unwrapped(model))["item"]
    with Checkpoints(folder, keep=2) as checkpoints:
        for step in range(1, 1000):
            store.weight.fill_(step)
            checkpoints.save(Contents(model), step)
            print(step, flush=True)


if __name__ == "__main__":
    meet(Path(sys.argv[1]))
    hr.init(timeout=10)
    save_for_ever(Path(sys.argv[1]))
    leave()
