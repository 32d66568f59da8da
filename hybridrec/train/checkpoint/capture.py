"""Capture: everything of a run at one moment, to be written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.owner import groups_of
from hybridrec.embedding.store import WHOLE, CopiedCapture, RowData, Snapshot, Store
from hybridrec.embedding.store import Capture as Rows
from hybridrec.optim import RowOptimizer
from hybridrec.train.checkpoint import dense_optimizer, row_optimizer, tree
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.homes import homes_of, state_without_rows, unwrapped
from hybridrec.train.checkpoint.part_info import PartInfo, file_name
from hybridrec.train.checkpoint.table_info import Home, TableInfo, info_of


@dataclass(frozen=True)
class Capture:
    """A run's contents: captures of the tables, and copies of all else; `close` it when it is written.

    Of several ranks, each has captures of the shares that it saves, and the first one has all else.
    """

    tables: Mapping[str, TableInfo]  # each with at most one part, the one of this rank
    rows: Mapping[str, Rows]
    sketches: Mapping[str, Tensor]
    dense: Mapping[str, Tensor]
    optimizer_tensors: Mapping[str, Tensor]
    state_tensors: Mapping[str, Tensor]
    trees: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """About as much as the files will take."""
        groups = (self.sketches, self.dense, self.optimizer_tensors, self.state_tensors)
        rows = sum(self.tables[name].row_bytes(self.part(name)) * held.most for name, held in self.rows.items())
        return rows + sum(part.nbytes for group in groups for part in group.values())

    @property
    def host_bytes(self) -> int:
        """Memory of the host that it would take if rows on GPUs changed before they are written."""
        return sum(held.host_bytes for held in self.rows.values())

    def part(self, table: str) -> PartInfo:
        """What is saved here of a table that is among `rows`."""
        [part] = self.tables[table].parts
        return part

    def close(self) -> None:
        """Let the tables forget it."""
        for held in self.rows.values():
            held.close()


@torch.no_grad()
def capture(contents: Contents, rank: int = 0) -> Capture:
    """Capture everything, on ranks above 0 only rows; ValueError where gradients wait that have no place in it."""
    model = unwrapped(contents.model)
    _check_queues(model)
    homes = homes_of(model)
    if rank > 0:
        return Capture(*_tables(homes, rank), {}, {}, {}, {})
    dense, extra = {}, {}
    for name, value in state_without_rows(model).items():
        if isinstance(value, Tensor):
            dense[name] = tree.copied(value)
        else:
            extra[name] = value
    optimizer_tensors: dict[str, Tensor] = {}
    state_tensors: dict[str, Tensor] = {}
    optimizers = {name: _optimizer(each, model, homes) for name, each in contents.optimizers.items()}
    trees = {
        "model": tree.encode(extra, state_tensors, "model"),
        "optimizers": tree.encode(optimizers, optimizer_tensors),
        "state": tree.encode(contents.state, state_tensors, "state"),
    }
    return Capture(*_tables(homes, rank), dense, optimizer_tensors, state_tensors, trees)


def _check_queues(model: torch.nn.Module) -> None:
    for _, group in groups_of(model):
        getattr(group, "settle", lambda: None)()  # pushes to servers that are on their way belong to it
        if waiting := sorted(group.waiting()):
            raise ValueError(
                f"table {waiting[0]!r} has gradients that wait for a step, and a checkpoint has no place for them; "
                "save after step(), or discard them with zero_grad()"
            )


def _optimizer(optimizer: Any, model: torch.nn.Module, homes: Mapping[str, Home]) -> dict[str, Any]:
    if isinstance(optimizer, RowOptimizer):
        return row_optimizer.to_tree(optimizer, homes)
    return dense_optimizer.to_tree(optimizer, model)


def _tables(homes: Mapping[str, Home], rank: int) -> tuple[dict[str, TableInfo], dict[str, Rows], dict[str, Tensor]]:
    tables = {name: info_of(home) for name, home in homes.items()}
    rows: dict[str, Rows] = {}
    sketches: dict[str, Tensor] = {}
    for name, home in homes.items():
        share = home.saved if isinstance(home, Store) else replace(WHOLE, saves=rank == 0)
        if share.empty or not share.saves:
            continue
        held = rows[name] = home.capture_saved() if isinstance(home, Store) else _of_parameter(home.weight)
        if held.sketch is not None:
            sketches[name] = held.sketch.contiguous()
        size = None if held.sketch is None else held.sketch.nbytes
        part = PartInfo(f"tables/{file_name(name, share)}", share=share, sketch=size, rank=rank)
        part = part if size is None else replace(part, sketches=held.sketches)
        tables[name] = replace(tables[name], clock=held.clock, rule=held.rule, parts=(part,))
    return tables, rows, sketches


def _of_parameter(weight: Tensor) -> Rows:
    return CopiedCapture(Snapshot(RowData(torch.arange(len(weight)), tree.copied(weight), {}), 0, None))
