"""The values and counters of a row optimizer. Its state lies beside the rows, and is saved with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridrec.optim import RowOptimizer
from hybridrec.train.checkpoint.names import Renamer
from hybridrec.train.checkpoint.table_info import Home


def to_tree(optimizer: RowOptimizer, homes: Mapping[str, Home]) -> dict[str, Any]:
    """The steps and the values of each table, under the name that the table is saved by."""
    names = _names(optimizer, homes)
    groups = {group["name"]: group for group in optimizer.param_groups}
    tables = {
        names[table]: {"step": optimizer.steps_of(table), "values": _values(groups[table])}
        for table in optimizer.tables
    }
    return {"kind": type(optimizer).__name__, "tables": tables}


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "name")}


def _names(optimizer: RowOptimizer, homes: Mapping[str, Home]) -> dict[str, str]:
    """The name in the checkpoint of each table of the optimizer."""
    known = {id(home): name for name, home in homes.items()}
    strange = [table for table, ref in optimizer._tables.items() if id(ref.store) not in known]
    if strange:
        raise ValueError(
            f"the row optimizer updates table {strange[0]!r}, which the model does not have; put the model into "
            "Contents that the optimizer was made for"
        )
    return {table: known[id(ref.store)] for table, ref in optimizer._tables.items()}


class RowLoad:
    """A saved row optimizer, compared with one of a model."""

    def __init__(
        self, optimizer: RowOptimizer, homes: Mapping[str, Home], saved: Mapping[str, Any], new_name: Renamer
    ) -> None:
        self.optimizer = optimizer
        self.names = _names(optimizer, homes)
        self.tables = {new_name(name): parts for name, parts in saved.get("tables", {}).items()}
        kind, own = saved.get("kind"), type(optimizer).__name__
        self.misfit = None if kind == own else f"it was a {kind}, and is a {own}; make a {kind}"
        absent = dict.fromkeys(self.names.values(), "it was not among the optimizer's tables")
        gone = dict.fromkeys(self.tables, "the optimizer does not update this table now")
        both = self.tables.keys() & absent.keys()
        self.losses = {} if self.misfit else {n: why for n, why in (absent | gone).items() if n not in both}

    def apply(self) -> None:
        """Take over the values and steps of the tables that are there."""
        for group in self.optimizer.param_groups:
            table = group["name"]
            saved = self.tables.get(self.names[table])
            if saved is not None:
                self.optimizer.check(table, saved["values"])
                group.update(saved["values"])
                self.optimizer._counts[table] = saved["step"]
