"""A rank of ours in `parallel.py`: DLRM over fixed tables in a plain training loop, alone or by `hr.shard`.

Kinds: `ours_1` is one process without hr.shard, `ours_2` two ranks with it, `ours_2_row` the same with all tables
pinned to be row-wise, `ours_apart` two processes that train a model each and share nothing but the machine. `weights`
saves the weights that all checks begin with, `check_alone` and `check` are the losses of one process and of ranks.
What is counted rather than timed is in parallel_counts.py, tables without layers are in parallel_planned.py.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from parallel_step import mean_losses, timed
from parallel_workload import BOTTOM, EPS, LR, NUMBERS, SQUARES, TOP, Rows, Task, load, say, together, weights_file
from torch import Tensor, distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import hybridrec as hr
from hybridrec.data.schema import Schema
from hybridrec.models import DLRM
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.types import Batch, IdBlock


def schema_of(task: Task) -> Schema:
    ids = {f"id{i}": pa.int64() for i in range(task.tables)}
    numbers = {f"dense{i}": pa.float32() for i in range(NUMBERS)}
    return Schema.infer(pa.schema({**ids, **numbers, "click": pa.int8()}), label="click")


def model_of(task: Task) -> DLRM:
    """DLRM as the peer has it: without the running norm, since the numbers of the workload are normal already."""
    torch.manual_seed(0)
    model = DLRM(schema_of(task), task.dim, bottom=BOTTOM, top=TOP, tables={"*": {"rows": task.rows}})
    model.net.norm = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return model


def batch_of(rows: Rows) -> Batch:
    """The rows as our loader hands them over: one id per row and feature, feature after feature."""
    tables, count = rows.ids.shape
    names = tuple(f"id{i}" for i in range(tables))
    starts = tuple(range(0, tables * count + 1, count))
    values, offsets = torch.from_numpy(np.ascontiguousarray(rows.ids).ravel()), torch.empty(0, count + 1).long()
    ids = IdBlock(names, values, starts, (1,) * tables, offsets, batch_size=count)
    return Batch(ids, torch.from_numpy(rows.dense), torch.from_numpy(rows.label))


@dataclass(eq=False)
class Loop:
    """A model and its optimizers."""

    model: Any
    dense: torch.optim.Optimizer
    rows: Any

    @classmethod
    def of(cls, model: nn.Module, rows: Any = hr.optim.RowWiseAdagrad) -> Loop:
        dense = torch.optim.Adagrad(model.parameters(), lr=LR, initial_accumulator_value=SQUARES)
        return cls(model, dense, rows(model, lr=LR, eps=EPS))

    def step(self, batch: Batch, following: Batch | None = None) -> Tensor:
        """One update; the loss before it. Ids of the batch that follows go ahead."""
        assert batch.label is not None
        if following is not None:
            self.model.prepare(following)
        self.dense.zero_grad()
        loss = binary_cross_entropy_with_logits(self.model(batch), batch.label)
        loss.backward()
        self.dense.step()
        self.rows.step()  # last: gradients of rows are on their way meanwhile
        return loss.detach()


def sharded(task: Task) -> nn.Module:
    """The model on the ranks, by the plan of our planner or row-wise; on one rank, or apart, as it is."""
    if task.world == 1 or task.kind == "ours_apart":
        return model_of(task)
    return hr.shard(model_of(task), pin=row_wise(task) if task.kind.endswith("_row") else None)


def row_wise(task: Task) -> dict[str, str]:
    """All tables pinned to one scheme."""
    return {f"id{i}": "row" for i in range(task.tables)}


@torch.no_grad()
def save_weights(task: Task) -> dict[str, Any]:
    """All rows and layers of the model as NumPy arrays, under names of the workload."""
    model, found = model_of(task), {}
    for i in range(task.tables):
        found[f"t{i}"] = model.embeddings.lookup(f"id{i}", torch.arange(task.rows)).numpy()
    for part in ("bottom", "top"):
        layers = [each for each in getattr(model.net, part) if isinstance(each, nn.Linear)]
        for i, layer in enumerate(layers):
            found |= {f"{part}.{i}.weight": layer.weight.numpy(), f"{part}.{i}.bias": layer.bias.numpy()}
    path = weights_file(task)
    part = path.with_suffix(f".part{os.getpid()}.npz")
    np.savez(part, **found)
    part.rename(path)
    return {"arrays": len(found)}


def losses_of_ranks(task: Task) -> dict[str, Any]:
    """Those of the loop that is timed: ids of the next batch go ahead."""
    loop, batches = Loop.of(sharded(task)), [batch_of(rows) for rows in load(task, place())]
    loop.model.prepare(batches[0])
    return {"losses": mean_losses(task, pairs(batches), lambda pair: float(loop.step(*pair)))}


def losses_alone(task: Task, ranks: int = 2) -> dict[str, Any]:
    """One process that gets the rows of all ranks at once."""
    loop = Loop.of(model_of(task))
    batches = [batch_of(together(list(parts))) for parts in zip(*(load(task, r) for r in range(ranks)), strict=True)]
    return {"losses": mean_losses(task, batches, lambda batch: float(loop.step(batch)))}


def speed(task: Task) -> dict[str, Any]:
    model = sharded(task)
    loop, batches = Loop.of(model), [batch_of(rows) for rows in load(task, place())]
    if not isinstance(model, ShardedModel):
        return timed(task, batches, loop.step)
    model.prepare(batches[0])
    return {**timed(task, pairs(batches), lambda pair: loop.step(*pair)), "plan": schemes(model)}


def pairs(batches: list[Batch]) -> list[tuple[Batch, Batch]]:
    """Each batch with the one that follows, going round."""
    return list(zip(batches, [*batches[1:], batches[0]], strict=True))


def schemes(model: ShardedModel) -> dict[str, int]:
    """How many tables the planner gave to each scheme."""
    return dict(Counter(each.scheme for each in model.plan.placements))


def place() -> int:
    return int(os.environ.get("RANK", "0"))


def kinds() -> dict[str, Callable[[Task], dict[str, Any]]]:
    """What a rank can be asked to do."""
    from parallel_counts import bytes_sent, collectives, overlap
    from parallel_figures import PLANNED
    from parallel_planned import planned

    return {
        "weights": save_weights,
        "check_alone": losses_alone,
        **dict.fromkeys(("check", "check_row"), losses_of_ranks),
        **dict.fromkeys(("ours_1", "ours_2", "ours_2_row", "ours_apart"), speed),
        **dict.fromkeys(("count_1", "count_500"), collectives),
        "wire": bytes_sent,
        **dict.fromkeys(("overlap", "overlap_now"), overlap),
        **{kind: lambda task: planned(task, place(), batch_of) for kind in PLANNED},
    }


def main() -> None:
    task = Task.from_json(sys.argv[1])
    torch.set_num_threads(task.threads)
    if task.world > 1:
        hr.init()
    answer = kinds()[task.kind](task)
    if place() == 0:
        say(answer)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
