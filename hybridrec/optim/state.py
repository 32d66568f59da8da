"""Optimizer state of a table as plain tensors: read from its store, checked, and written back by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec.optim.options import listed
from hybridrec.optim.rule import RowRule

if TYPE_CHECKING:
    from hybridrec.embedding.store import Store

CHUNK = 65536  # rows at a time: stores read and write the state together with its rows


def read(store: Store, step: int) -> dict[str, Any]:
    """The step and the columns of a table; with "ids" where it is dynamic."""
    rule = store.rule
    assert rule is not None, "a claimed table has a rule"
    parts = [chunk.state for chunk in store.chunks(CHUNK)]
    shapes = {c.name: (0,) if c.per_row else (0, store.dim) for c in rule.state}
    empty = {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
    columns = {name: torch.cat([part[name] for part in parts]) if parts else empty[name] for name in rule.names}
    return {"step": step, **({"ids": store.ids()} if store.table.dynamic else {}), **columns}


def groups_by_table(
    saved: Mapping[str, Any], tables: Iterable[str], defaults: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """The saved groups by table, checked to be those of these tables and of this kind of optimizer."""
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= saved.keys():
        raise ValueError(
            'a state_dict has the keys "state" and "param_groups"; this one was not made by a row optimizer'
        )
    groups = {group.get("name"): dict(group) for group in saved["param_groups"]}
    for found in (groups, saved["state"]):
        _check_names(found, list(tables))
    for name, group in groups.items():
        lacking = [key for key in defaults if key not in group]
        if lacking:
            raise ValueError(
                f"the saved values of table {name!r} lack {lacking[0]!r}: another kind of optimizer made them"
            )
    return groups


def _check_names(found: Mapping[Any, Any], tables: list[str]) -> None:
    unknown, lacking = [name for name in found if name not in tables], [name for name in tables if name not in found]
    if unknown:
        raise ValueError(
            f"the state_dict has table {unknown[0]!r}, which is not updated here; valid are {listed(tables)}"
        )
    if lacking:
        raise ValueError(f"the state_dict lacks table {lacking[0]!r}; it has {listed(map(str, found))}")


def check(table: str, saved: Mapping[str, Any], store: Store, rule: RowRule) -> None:
    """Refuse state that does not fit the table."""
    expected = ["step", *(["ids"] if store.table.dynamic else []), *rule.names]
    if set(saved) != set(expected):
        raise ValueError(f"the state of table {table!r} has {listed(saved)}; {rule.kind} needs {listed(expected)}")
    if not isinstance(saved["step"], int) or saved["step"] < 0:
        raise ValueError(f"the state of table {table!r}: step is {saved['step']!r}; it must be a count")
    rows = _check_ids(table, saved["ids"], store) if store.table.dynamic else len(store)
    for column in rule.state:
        shape = [rows] if column.per_row else [rows, store.dim]
        value = saved[column.name]
        if not isinstance(value, Tensor) or list(value.shape) != shape:
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the state of table {table!r}: {column.name} is {given}; it must be a tensor {shape}")


def _check_ids(table: str, ids: Any, store: Store) -> int:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"the state of table {table!r}: ids must be an int64 tensor of one dimension")
    strange = ids[~torch.isin(ids, store.ids())]
    if len(strange):
        raise ValueError(
            f"the state of table {table!r} has {len(strange)} ids without a row, such as {int(strange[0])}; "
            "load the model before its optimizer"
        )
    return len(ids)


def write(saved: Mapping[str, Any], store: Store) -> int:
    """Put the columns beside their rows, which stay as they are; returns the step."""
    columns = {name: value for name, value in saved.items() if name not in ("step", "ids")}
    ids = saved.get("ids", store.ids())
    for places in torch.arange(len(ids) if columns else 0).split(CHUNK):
        now = store.read(ids[places])
        part = {name: value[places].float() for name, value in columns.items()}
        store.load(now.ids, now.rows, part, now.touched, now.counts)
    return saved["step"]
