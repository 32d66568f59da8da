"""Small programs of ranks whose rows are on the device under test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hybridrec as hr
from hybridrec.data import Dataset
from hybridrec.parallel.ranks import ranks
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.table_figures import TableFigures
from hybridrec.train.together import inside
from hybridrec.types import Batch, IdBlock
from tests.embedding.gpu.test_cold_file import file_in
from tests.gpu import DEVICE, wait_for_the_device
from tests.parallel.gpu.collection import DeviceCollection
from tests.parallel.jobs.faults import told
from tests.parallel.jobs.sharding import plan_of
from tests.parallel.jobs.training import held, rank_here, run, sharded, stores
from tests.parallel.training_case import Case

ROWS, DIM = 10, 4


def collection(scheme: str, tables: int = 1, combiner: str = "sum", cache: int | None = None) -> Any:
    """Tables t0, t1, ... on all ranks."""
    made = [hr.Table(f"t{n}", DIM, rows=ROWS, combiner=combiner, cache=cache) for n in range(tables)]
    return hr.shard(DeviceCollection(made, seed=5), plan=plan_of(scheme, tables))


def looked_up_by(offsets: list[int]) -> dict[str, str]:
    """Rank 0 has such offsets for three ids; the others have good ones."""
    lines = torch.tensor([offsets if rank_here() == 0 else [0, 1, 2, 3]])
    block = IdBlock.trusted(("t0",), torch.tensor([1, 2, 3]), (0, 3), (None,), lines, None, 3).to(DEVICE)
    return told(lambda: collection("row")(block))


def not_finite(scheme: str) -> dict[str, Any]:
    """Rank 0 has a gradient that is no number."""
    model = collection(scheme)
    rows = hr.optim.SGD(model, lr=0.1, nan="raise")
    before = held(model.module["t0"])
    out = model(IdBlock.from_lists({"t0": [[1, 2], [3]]}).to(DEVICE)).flat
    (out * (float("nan") if rank_here() == 0 else 1.0)).sum().backward()
    found = told(rows.step)
    return {**found, "same": torch.equal(before["rows"], held(model.module["t0"])["rows"])}


def read(scheme: str = "row", cache: int | None = None) -> dict[str, Any]:
    """Rows by id, each rank for its own; then one that is not there."""
    whole = hr.EmbeddingCollection([hr.Table("t0", DIM, rows=ROWS, combiner="sum")], seed=5)
    ids = torch.tensor([[rank_here(), 9], [3, 3], [2, 4], [6, 8], [1, 5]])
    model = collection(scheme, cache=cache).module
    same = torch.equal(model.lookup("t0", ids).cpu(), whole.lookup("t0", ids))
    return {"rows": same, "refused": told(lambda: model.lookup("t0", [ROWS + rank_here()]))}


def traffic(tables: int) -> dict[str, Any]:
    """Messages of one step."""
    model = collection("row", tables)
    rows = hr.optim.SGD(model, lr=0.1)
    block = IdBlock.from_lists({f"t{n}": [[1, 2, 1]] for n in range(tables)}).to(DEVICE)
    model.exchange.traffic.clear()
    model(block).flat.sum().backward()
    rows.step()
    return {"calls": dict(model.exchange.traffic.calls), "bytes": dict(model.exchange.traffic.bytes)}


def train_in_tiers(case: dict[str, Any]) -> dict[str, Any]:
    """The run of a case on this rank, what tables in tiers count here, and what is told of those of all ranks."""
    made = Case(**case)
    model = sharded(made)
    figures = TableFigures(model.module, ranks())
    found = run(made, model, [rank_here()])
    counted = {name: store.counters() for name, store in stores(model).items()}
    tiers = {name: each for name, each in counted.items() if "moved_rows" in each}
    return found | {"counters": tiers, "told": figures.take()}


def admitted_ahead() -> dict[str, Any]:
    """Three batches are prepared, of which the second needs rows where those of the first are: how many of them have
    rows on the device when a backward call is done, and how much the rows have changed in the end."""
    table = hr.Table("t0", DIM, rows=34, cache=16)
    model: Any = hr.shard(DeviceCollection([table], seed=5), plan=plan_of("row", 1))
    rows, store = hr.optim.SGD(model, lr=0.5), model.module["t0"]
    before, admitted = held(store), []
    blocks = [IdBlock.from_lists({"t0": [ids]}).to(DEVICE) for ids in (list(range(24)), [32, 33], [2, 3])]
    for each in blocks:
        model.prepare(each)
    for each in blocks:
        model(each).flat.sum().backward()
        admitted.append(store.tier.figures().admissions)
        rows.step()
    changes = (before["rows"] - held(store)["rows"]) / 0.5
    times = {id: change.mean().item() for id, change in zip(before["ids"].tolist(), changes, strict=True)}
    return {"admitted": admitted, "updates": {str(id): round(n, 3) for id, n in times.items() if n}}


def too_many() -> dict[str, Any]:
    """All ranks together ask rank 0 for more rows than its cache has room for; then all go on with few."""
    model = collection("row", cache=3)
    rows = hr.optim.SGD(model, lr=0.1)
    before = held(model.module["t0"])["rows"]
    model(IdBlock.from_lists({"t0": [[0, 2, 1], [4 + 4 * rank_here()]]}).to(DEVICE)).flat.sum().backward()
    rows.step()
    wait_for_the_device()
    found = told(lambda: model(IdBlock.from_lists({"t0": [[0]]}).to(DEVICE)))
    after = held(model.module["t0"])["rows"]
    out = model(IdBlock.from_lists({"t0": [[6, 8]]}).to(DEVICE)).flat
    wanted = hr.EmbeddingCollection([hr.Table("t0", DIM, rows=ROWS)], seed=5).lookup("t0", [6, 8]).sum(0)
    return {**found, "changed": int((before != after).any(1).sum()), "goes on": torch.allclose(out.cpu(), wanted)}


def cut(folder: str, rank: int) -> dict[str, Any]:
    """The file with the cold rows of one rank is cut between two lookups."""
    table = hr.Table("t0", DIM, rows=ROWS, combiner="sum", cache=3, path=folder)
    model: Any = hr.shard(DeviceCollection([table], seed=5), plan=plan_of("row", 1))
    block = IdBlock.from_lists({"t0": [[rank_here(), 4]]}).to(DEVICE)
    model(block)
    wait_for_the_device()
    if rank_here() == rank:
        os.ftruncate(file_in(Path(folder)), 16)
    return told(lambda: model(block))


class Click(nn.Module):
    """Two tables and a layer; rows on the device under test, or on the CPU."""

    def __init__(self, on_device: bool, cache: int | None = None, capacity: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [_users(cache, capacity), hr.Table("item", DIM + 1, rows=6, dtype=torch.float32)]
        self.emb: Any = (DeviceCollection if on_device else hr.EmbeddingCollection)(tables, seed=5)
        self.top = nn.Linear(2 * DIM + 1, 1)
        self.to(DEVICE if on_device else "cpu")

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.top(self.emb(batch).flat)[:, 0]


def _users(cache: int | None, capacity: int | None) -> hr.Table:
    """A fixed table, or a dynamic one that counts ids before it lets them in, and rows then."""
    if capacity is None:
        return hr.Table("user", DIM, rows=9, cache=cache)
    return hr.Table("user", DIM, capacity=capacity, admission=hr.embedding.MinCount(3), eviction="lfu")


def clicks() -> Dataset:
    """Twenty rows, in batches of six."""
    draw = np.random.default_rng(0)
    columns = {"user": draw.integers(0, 9, 20), "item": draw.integers(0, 6, 20), "click": draw.integers(0, 2, 20)}
    return hr.data.table(columns, label="click", batch_size=6)


def fitted(
    folder: str | None, on_device: bool, cache: int | None = None, capacity: int | None = None, epochs: int = 2
) -> dict[str, Any]:
    """A fit by the Trainer, which goes on where the folder has a checkpoint, and all that is seen of it."""
    ds = clicks()
    options = TrainOptions(progress="none", log_every=2)
    trainer = Trainer(
        Click(on_device, cache, capacity),
        row_optimizer=lambda it: hr.optim.Adagrad(it, lr=0.1),
        out=folder,
        options=options,
    )
    history = trainer.fit(ds.shard_for_rank(by="batch"), ds, epochs=epochs, resume=folder and "auto")
    return {
        "losses": [each["loss"] for each in history],
        "weights": {name: part.detach().cpu() for name, part in inside(trainer.model).named_parameters()},
        "scores": torch.from_numpy(np.asarray(trainer.predict(ds))),
        "evaluated": trainer.evaluate(ds)["loss"],
    }


def loaded(folder: str, on_device: bool, cache: int | None = None, capacity: int | None = None) -> dict[str, Any]:
    """The scores of a run that was saved, by a model here."""
    found = hr.load(folder, "latest", model=Click(on_device, cache, capacity)).predict(clicks())
    return {"scores": torch.from_numpy(np.asarray(found))}
