"""TableInfo: what a saved table is, and whether it fits a table of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.store import Store
from hybridrec.embedding.table import Table
from hybridrec.embedding.unfused import TableWeight
from hybridrec.optim.rule import RowRule, StateColumn

Home = Store | TableWeight  # where a model has a table's rows


@dataclass(frozen=True)
class TableInfo:
    """A saved table: its shape, its clock, and the update rule that its state columns belong to."""

    file: str
    rows: int  # that are in the file
    dim: int
    dtype: str
    size: int | None  # all rows of a fixed table
    capacity: int | None  # of a dynamic one
    seed: int | None
    clock: int
    rule: RowRule | None
    sketch: int | None  # bytes
    policies: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableInfo:
        """The table that an entry of a manifest describes."""
        rule = found["rule"]
        if rule is not None:
            rule = RowRule(rule["kind"], tuple(StateColumn(**column) for column in rule["state"]))
        return cls(**{**found, "rule": rule})

    @property
    def row_bytes(self) -> int:
        """About what a row takes in the file: id, row, state, scores."""
        widths = [1 if column.per_row else self.dim for column in self.rule.state] if self.rule else []
        scores = 16 if self.dynamic else 0
        return 8 + (2 if self.dtype == "float16" else 4) * self.dim + 4 * sum(widths) + scores

    @property
    def dynamic(self) -> bool:
        return self.capacity is not None


def info_of(home: Home, file: str) -> TableInfo:
    """What the table of a model is; `rows` is left for the writer to fill in."""
    table, store = home.table, home if isinstance(home, Store) else None
    return TableInfo(
        file=file,
        rows=0,
        dim=table.dim,
        dtype=str(table.dtype).removeprefix("torch."),
        size=None if table.dynamic else table.fixed_rows,
        capacity=table.capacity,
        seed=None if store is None else store.seed,
        clock=0 if store is None else store.clock,
        rule=None if store is None else store.rule,
        sketch=_sketch_bytes(home),
        policies=_policies(table),
    )


def _policies(table: Table) -> dict[str, str]:
    return {name: repr(getattr(table, name)) for name in ("init", "eviction", "admission", "hashes")}


def _sketch_bytes(home: Home) -> int | None:
    return int(home.memory()["sketch"]) or None if isinstance(home, HashStore) else None


@dataclass(frozen=True)
class Fit:
    """How a saved table fits: not at all (`misfit`), with losses (`losses`), or well, with something to know."""

    misfit: str | None = None
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def fit(saved: TableInfo, home: Home) -> Fit:
    """Compare a saved table with one of a model."""
    wanted = info_of(home, saved.file)
    misfit = _misfit(saved, wanted)
    if misfit is not None:
        return Fit(misfit)
    losses = [_dtype(saved, wanted), _rule(saved, wanted), _sketch(saved, wanted), _seed(saved, wanted)]
    changed = [name for name in wanted.policies if saved.policies.get(name) != wanted.policies[name]]
    notes = [f"{name} was {saved.policies.get(name)} and is {wanted.policies[name]}" for name in changed]
    return Fit(None, tuple(filter(None, losses)), tuple(notes))


def _misfit(saved: TableInfo, wanted: TableInfo) -> str | None:
    if saved.dynamic != wanted.dynamic:
        kinds = {True: "dynamic, declared with capacity=", False: "fixed, declared with rows="}
        return f"it was {kinds[saved.dynamic]}, and is {kinds[wanted.dynamic]}; declare it as it was"
    if saved.dim != wanted.dim:
        return f"it was saved with dim {saved.dim}, and has dim {wanted.dim}; declare it with dim={saved.dim}"
    if saved.size != wanted.size:
        return f"it was saved with {saved.size} rows, and has {wanted.size}; declare it with rows={saved.size}"
    if wanted.capacity is not None and saved.rows > wanted.capacity:
        return f"{saved.rows} rows were saved, and its capacity is {wanted.capacity}; give it capacity={saved.rows}"
    return None


def _dtype(saved: TableInfo, wanted: TableInfo) -> str | None:
    if saved.dtype == wanted.dtype:
        return None
    return f"dtype was {saved.dtype} and is {wanted.dtype}: its rows would be converted"


def _rule(saved: TableInfo, wanted: TableInfo) -> str | None:
    if wanted.rule is None or saved.rule == wanted.rule:  # without an optimizer nobody asks for state
        return None
    return f"its optimizer state was of {_named(saved.rule)} and is of {_named(wanted.rule)}: it would start anew"


def _named(rule: RowRule | None) -> str:
    if rule is None:
        return "no optimizer"
    columns = ", ".join(f"{column.name} from {column.fill:g}" for column in rule.state)
    return f"{rule.kind} ({columns or 'no state'})"


def _sketch(saved: TableInfo, wanted: TableInfo) -> str | None:
    if saved.sketch == wanted.sketch or wanted.sketch is None:
        return None
    have = f"of {saved.sketch:,} bytes" if saved.sketch else "missing"
    return f"its counts for admission are {have}, not of {wanted.sketch:,} bytes: they would start anew"


def _seed(saved: TableInfo, wanted: TableInfo) -> str | None:
    draws = wanted.dynamic or wanted.dtype != "float32"  # new rows, and rounding
    if None in (saved.seed, wanted.seed) or saved.seed == wanted.seed or not draws:
        return None
    return f"its seed was {saved.seed} and is {wanted.seed}: it would draw other numbers"
