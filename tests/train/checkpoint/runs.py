"""Small training runs for tests of checkpoints: models of every kind, steps by number, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import Table
from hybridrec.train.checkpoint import Checkpoints, Contents, load
from hybridrec.train.checkpoint.homes import homes_of, state_without_rows

Rows = Callable[[nn.Module], hr.optim.RowOptimizer]


class Click(nn.Module):
    """A collection, two layers, a dropout that draws random numbers, and a running mean."""

    def __init__(self, *tables: Table, fused: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.emb = hr.EmbeddingCollection(tables, fused=fused, seed=seed)
        self.norm = nn.BatchNorm1d(sum(self.emb.dims))
        self.top = nn.Sequential(nn.Linear(sum(self.emb.dims), 3), nn.Dropout(0.5), nn.ReLU(), nn.Linear(3, 1))

    def forward(self, ids: Mapping[str, Tensor]) -> Tensor:
        return self.top(self.norm(self.emb(ids).flat))[:, 0]


class Run:
    """A model in training: its optimizers, schedules and step."""

    def __init__(self, model: nn.Module, rows: Rows | None, features: Mapping[str, int], dense: Any = None) -> None:
        self.model, self.features, self.step = model, features, 0
        make = dense or (lambda parameters: torch.optim.Adam(parameters, lr=0.01))
        self.optimizers: dict[str, Any] = {"dense": make(model.parameters())}
        if rows is not None:
            self.optimizers["rows"] = rows(model)
        self.schedules = {
            name: torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for name, each in self.optimizers.items()
        }

    def batch(self) -> dict[str, Tensor]:
        """Ids of this step: like those of any step of this number."""
        generator = torch.Generator().manual_seed(self.step)
        drawn = {name: torch.randint(size, (8,), generator=generator) for name, size in self.features.items()}
        return {name: ids + 3 * (self.step // 2) * (name == "user") for name, ids in drawn.items()}

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model(self.batch()).square().mean().backward()
            for name, optimizer in self.optimizers.items():
                optimizer.step()
                optimizer.zero_grad()
                self.schedules[name].step()
            self.step += 1

    def contents(self) -> Contents:
        state = {
            "step": self.step,
            "schedules": {name: each.state_dict() for name, each in self.schedules.items()},
            "rng": torch.get_rng_state(),
        }
        return Contents(self.model, self.optimizers, state)

    def save(self, folder: Path, **options: Any) -> Path:
        with Checkpoints(folder, keep=10) as checkpoints:
            checkpoints.save(self.contents(), self.step, **options)
        found = checkpoints.latest()
        assert found is not None
        return found

    def resume(self, path: Path) -> None:
        contents = self.contents()
        report = load(path, contents)
        assert report.complete
        self.step = contents.state["step"]
        for name, each in self.schedules.items():
            each.load_state_dict(contents.state["schedules"][name])
        torch.set_rng_state(contents.state["rng"])


def everything(run: Run) -> dict[str, Any]:
    """All that a run holds, by name, to compare two of them bit by bit."""
    found: dict[str, Any] = {f"weight {k}": v for k, v in state_without_rows(run.model).items()}
    for name, home in homes_of(run.model).items():
        if isinstance(home, nn.Module):
            found[f"{name} rows"] = home.weight.detach()
            continue
        held = home.snapshot()
        order = held.data.ids.argsort()
        found |= {f"{name} ids": held.data.ids[order], f"{name} rows": held.data.rows[order]}
        found |= {f"{name} {part}": value[order] for part, value in held.data.state.items()}
        found |= {f"{name} touched": held.data.touched, f"{name} counts": held.data.counts}
        found |= {f"{name} clock": held.clock, f"{name} sketch": held.sketch}
    for name, each in run.optimizers.items():
        saved = each.state_dict()
        found[f"{name} groups"] = [{k: v for k, v in group.items() if k != "params"} for group in saved["param_groups"]]
        for key, parts in saved["state"].items():
            found |= {f"{name} {key} {part}": value for part, value in parts.items()}
    return found


def differences(a: Run, b: Run) -> list[str]:
    """The names of what is not the same, bit by bit."""
    mine, theirs = everything(a), everything(b)
    return [name for name in mine.keys() | theirs.keys() if not _same(mine.get(name), theirs.get(name))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    return type(a) is type(b) and a == b


def _bits(values: Tensor) -> Tensor:
    """As whole numbers, so that -0.0 is not 0.0."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.contiguous().view(kinds[values.dtype.itemsize]) if values.is_floating_point() else values
