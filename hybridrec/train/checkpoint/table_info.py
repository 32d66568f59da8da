"""TableInfo: what a saved table is, and whether it fits a table of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hybridrec.embedding.store import Store
from hybridrec.embedding.table import Table
from hybridrec.embedding.unfused import TableWeight
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train.checkpoint.part_info import PartInfo

Home = Store | TableWeight  # where a model has a table's rows


@dataclass(frozen=True)
class TableInfo:
    """A saved table: its shape, its clock, the update rule that its state columns belong to, and its files."""

    dim: int
    dtype: str
    size: int | None  # all rows of a fixed table
    capacity: int | None  # of a dynamic one
    seed: int | None
    clock: int
    rule: RowRule | None
    policies: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[PartInfo, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableInfo:
        """The table that an entry of a manifest describes."""
        rule, given = found["rule"], dict(found)
        if rule is not None:
            rule = RowRule(rule["kind"], tuple(StateColumn(**column) for column in rule["state"]))
        if "parts" not in found:  # version 1: one file
            given["parts"] = [{**{name: given.pop(name) for name in ("file", "rows", "sketch")}, "share": {}}]
        return cls(**{**given, "rule": rule, "parts": tuple(map(PartInfo.from_json, given["parts"]))})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(replace(self, parts=())), "parts": [part.to_json() for part in self.parts]}

    @property
    def rows(self) -> int:
        """All rows that were saved; columns of the same rows may be in several parts."""
        return sum(part.rows for part in self.parts if part.share.column == 0)

    def columns(self, part: PartInfo) -> range:
        """Which columns of the table the part has."""
        return range(part.share.column, part.share.column + part.share.dim_of(self.dim))

    def row_bytes(self, part: PartInfo) -> int:
        """About what a row takes in the file of the part: id, row, state, scores."""
        dim = len(self.columns(part))
        columns = self.rule.state if self.rule else ()
        widths = [column.width(dim) for column in columns if not (column.per_row and part.share.column)]
        scores = 16 if self.dynamic else 0
        return 8 + (2 if self.dtype == "float16" else 4) * dim + 4 * sum(widths) + scores

    @property
    def dynamic(self) -> bool:
        return self.capacity is not None


def info_of(home: Home) -> TableInfo:
    """What the table of a model is, as yet without its parts."""
    table, store = home.table, home if isinstance(home, Store) else None
    return TableInfo(
        dim=table.dim,
        dtype=str(table.dtype).removeprefix("torch."),
        size=None if table.dynamic else table.fixed_rows,
        capacity=table.capacity,
        seed=None if store is None else store.seed,
        clock=0 if store is None else store.clock,
        rule=None if store is None else store.rule,
        policies=_policies(table),
    )


def _policies(table: Table) -> dict[str, str]:
    return {name: repr(getattr(table, name)) for name in ("init", "eviction", "admission", "hashes")}


def sketch_bytes(home: Home) -> int | None:
    """The size of the counts for admission, where a table has them."""
    if not isinstance(home, Store) or not home.table.dynamic:
        return None
    return int(home.memory().get("sketch", 0)) or None


@dataclass(frozen=True)
class Fit:
    """How a saved table fits: not at all (`misfit`), with losses (`losses`), or well, with something to know."""

    misfit: str | None = None
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def fit(saved: TableInfo, home: Home) -> Fit:
    """Compare a saved table with one of a model."""
    wanted = info_of(home)
    misfit = _misfit(saved, wanted)
    if misfit is not None:
        return Fit(misfit)
    losses = [_dtype(saved, wanted), _rule(saved, wanted), sketch_loss(saved, home), _seed(saved, wanted)]
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
    # Shares of a table may together hold a few more rows than it has capacity; the loader gives up what has no room.
    if wanted.capacity is not None and saved.rows > wanted.capacity and wanted.capacity < (saved.capacity or 0):
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


def sketch_loss(saved: TableInfo, home: Home) -> str | None:
    """Why the counts for admission cannot be had from the checkpoint, or None."""
    wanted, found = sketch_bytes(home), {part.sketch for part in saved.parts}
    if wanted is None or found == {wanted} or (None not in found and _same_counts(saved, info_of(home))):
        return None
    have = "missing" if None in found else f"of {max(size or 0 for size in found):,} bytes"
    return f"its counts for admission are {have}, not of {wanted:,} bytes: they would start anew"


def _same_counts(saved: TableInfo, wanted: TableInfo) -> bool:
    """Whether the counts of the two tables differ in size only where their shares do."""
    admission = (info.policies.get("admission") for info in (saved, wanted))
    return saved.capacity == wanted.capacity and len(set(admission)) == 1


def _seed(saved: TableInfo, wanted: TableInfo) -> str | None:
    draws = wanted.dynamic or wanted.dtype != "float32"  # new rows, and rounding
    if None in (saved.seed, wanted.seed) or saved.seed == wanted.seed or not draws:
        return None
    return f"its seed was {saved.seed} and is {wanted.seed}: it would draw other numbers"
