"""Capture: everything of a run at one moment, to be written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.owner import groups_of
from hybridrec.embedding.store import Capture as Rows
from hybridrec.embedding.store import CopiedCapture, RowData, Snapshot, Store
from hybridrec.optim import RowOptimizer
from hybridrec.train.checkpoint import dense_optimizer, row_optimizer, tree
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.homes import homes_of, state_without_rows, unwrapped
from hybridrec.train.checkpoint.table_info import Home, TableInfo, info_of

MOST_NAME = 180  # bytes of a file's name


@dataclass(frozen=True)
class Capture:
    """A run's contents: captures of the tables, and copies of all else; `close` it when it is written."""

    tables: Mapping[str, tuple[TableInfo, Rows]]
    sketches: Mapping[str, Tensor]
    dense: Mapping[str, Tensor]
    optimizer_tensors: Mapping[str, Tensor]
    state_tensors: Mapping[str, Tensor]
    trees: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """About as much as the files will take."""
        groups = (self.sketches, self.dense, self.optimizer_tensors, self.state_tensors)
        rows = sum(info.row_bytes * held.most for info, held in self.tables.values())
        return rows + sum(part.nbytes for group in groups for part in group.values())

    @property
    def host_bytes(self) -> int:
        """Memory of the host that it would take if rows on GPUs changed before they are written."""
        return sum(held.host_bytes for _, held in self.tables.values())

    def close(self) -> None:
        """Let the tables forget it."""
        for _, held in self.tables.values():
            held.close()


@torch.no_grad()
def capture(contents: Contents) -> Capture:
    """Capture everything; ValueError where gradients wait that a checkpoint cannot hold."""
    model = unwrapped(contents.model)
    _check_queues(model)
    homes = homes_of(model)
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
    tables, sketches = _tables(homes)
    return Capture(tables, sketches, dense, optimizer_tensors, state_tensors, trees)


def _check_queues(model: torch.nn.Module) -> None:
    for _, group in groups_of(model):
        if waiting := sorted(group.waiting()):
            raise ValueError(
                f"table {waiting[0]!r} has gradients that wait for a step, and a checkpoint has no place for them; "
                "save after step(), or discard them with zero_grad()"
            )


def _optimizer(optimizer: Any, model: torch.nn.Module, homes: Mapping[str, Home]) -> dict[str, Any]:
    if isinstance(optimizer, RowOptimizer):
        return row_optimizer.to_tree(optimizer, homes)
    return dense_optimizer.to_tree(optimizer, model)


def _tables(homes: Mapping[str, Home]) -> tuple[dict[str, tuple[TableInfo, Rows]], dict[str, Tensor]]:
    tables, sketches = {}, {}
    for name, home in homes.items():
        held = home.capture() if isinstance(home, Store) else _of_parameter(home.weight)
        info = replace(info_of(home, f"tables/{file_name(name)}"), clock=held.clock, rule=held.rule)
        if held.sketch is not None:
            sketches[name] = held.sketch.contiguous()
        tables[name] = (replace(info, sketch=None if held.sketch is None else held.sketch.nbytes), held)
    return tables, sketches


def _of_parameter(weight: Tensor) -> Rows:
    return CopiedCapture(Snapshot(RowData(torch.arange(len(weight)), tree.copied(weight), {}), 0, None))


def file_name(table: str) -> str:
    """The name of a table's file: the table's name as in a URL, shortened where it is too long.

    >>> file_name("emb.item"), file_name("a/b")
    ('emb.item.arrow', 'a%2Fb.arrow')
    """
    name = quote(table, safe=" ")
    if len(name) > MOST_NAME:
        name = f"{name[:MOST_NAME]}-{_native.xxh64(table.encode()):016x}"
    return name + ".arrow"
