"""What a collection puts into a `state_dict`, and how it takes it back: every table whole, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridrec.embedding.policies import LFU, MinCount
from hybridrec.embedding.store import RowData, Snapshot, Store
from hybridrec.embedding.table import Table
from hybridrec.embedding.unfused import TableWeight

PART = 1 << 17  # rows that are loaded at a time
Home = Store | TableWeight  # where a collection has a table's rows


@dataclass(frozen=True)
class LoadReport:
    """What the last `load_state_dict` did to each table.

    >>> LoadReport(("item",), {"user": "found dim 8, wanted 16"})
    1 table loaded: item
    1 table skipped:
      user: found dim 8, wanted 16
    """

    loaded: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = [f"{_tables(len(self.loaded))} loaded{': ' * bool(self.loaded)}{', '.join(self.loaded)}"]
        if self.skipped:
            lines.append(f"{_tables(len(self.skipped))} skipped:")
            lines += [f"  {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)


class MisfitKey(str):
    """A key that is there but does not fit. Torch takes it for a missing one, and its error shows why.

    >>> f"Missing: {MisfitKey('item.weight', 'found dim 8, wanted 16')}"
    'Missing: item.weight: found dim 8, wanted 16'
    >>> MisfitKey("item.weight", "found dim 8, wanted 16") == "item.weight"
    True
    """

    reason: str

    def __new__(cls, key: str, reason: str) -> MisfitKey:
        made = super().__new__(cls, key)
        made.reason = reason
        return made

    def __format__(self, spec: str) -> str:
        return format(f"{self!s}: {self.reason}", spec)

    def __reduce__(self) -> tuple:
        return MisfitKey, (str(self), self.reason)


def _tables(count: int) -> str:
    return f"{count} table{'s' * (count != 1)}"


def refuse_share(home: Home) -> None:
    """Raise for rows that are a part of a table: a `state_dict` has tables as a whole."""
    if isinstance(home, Store) and not (home.share.whole and home.here):
        raise RuntimeError(
            f"table {home.table.name!r} lies on {'several ranks' if home.here else 'servers'}, and no process has all "
            "of it for a state_dict; save and load with hybridrec.train.checkpoint.Checkpoints, which a Trainer does "
            "by itself"
        )


def keys(table: Table) -> tuple[str, ...]:
    """The keys of a table, each after "{table}."."""
    if not table.dynamic:
        return ("weight",)
    counts = ("counts",) if isinstance(table.eviction, LFU) else ()
    sketch = ("sketch",) if isinstance(table.admission, MinCount) and table.admission.k > 1 else ()
    return ("ids", "weight", "touched", *counts, *sketch, "clock")


def save(home: Home, prefix: str, state: MutableMapping[str, Tensor]) -> None:
    """Add a table's parts; those of a fixed table view its rows, as parameters do."""
    for name, part in _parts(home).items():
        state[f"{prefix}{home.table.name}.{name}"] = part


def _parts(home: Home) -> dict[str, Tensor]:
    if not isinstance(home, Store) or not home.table.dynamic:
        if isinstance(home, Store) and not home.one_piece:
            return {"weight": home.snapshot().data.rows}
        return {"weight": weight_of(home).detach()}
    data, sketch = home.export(), home.sketch()  # pyright: ignore[reportAttributeAccessIssue]  (as all dynamic ones)
    parts = {
        "ids": data.ids,
        "weight": data.rows,
        "touched": data.touched,
        "counts": data.counts,
        "sketch": sketch,
    }
    given = {name: part for name, part in parts.items() if part is not None}
    return given | {"clock": torch.tensor(home.clock)}


def weight_of(home: Home) -> Tensor:
    """The rows of a fixed table as they lie in memory."""
    weight: Tensor = home.weight  # pyright: ignore[reportAttributeAccessIssue]  (all stores of fixed tables have it)
    return weight


def misfit(table: Table, parts: Mapping[str, Tensor]) -> str | None:
    """Why these parts cannot be this table, or None."""
    weight = parts["weight"]
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        return f"found {_describe(weight)}, wanted rows [n, {table.dim}]"
    if not table.dynamic and "ids" in parts:
        return f"found the {len(weight)} rows of a dynamic table, wanted the {table.fixed_rows} of a fixed one"
    if not table.dynamic:
        found, wanted = list(weight.shape), [table.fixed_rows, table.dim]
        return None if found == wanted else f"found {_rows(*found)}, wanted {_rows(*wanted)}"
    return _dynamic_misfit(table, parts, weight)


def _dynamic_misfit(table: Table, parts: Mapping[str, Tensor], weight: Tensor) -> str | None:
    if "ids" not in parts:
        return f"found the {len(weight)} rows of a fixed table without their ids, wanted those of a dynamic one"
    if weight.shape[1] != table.dim:
        return f"found {_rows(*weight.shape)}, wanted dim {table.dim}"
    assert table.capacity is not None
    if len(weight) > table.capacity:
        return f"found {len(weight)} rows, wanted at most {table.capacity}, its capacity"
    ids = parts["ids"]
    if ids.dtype != torch.int64 or ids.shape != weight.shape[:1] or len(ids.unique()) != len(ids):
        return f"found ids {_describe(ids)}, wanted int64 [{len(weight)}], each once"
    for name in ("touched", "counts"):
        if name in parts and parts[name].shape != ids.shape:
            return f"found {name} {_describe(parts[name])}, wanted one for each of {len(ids)} ids"
    return None


def _sketch_misfit(home: Home, parts: Mapping[str, Tensor]) -> str | None:
    if "sketch" not in parts or not isinstance(home, Store):
        return None
    found, wanted = parts["sketch"].numel(), home.memory()["sketch"]
    if found == wanted:
        return None
    return f"found a sketch of {found} bytes, wanted {wanted:g}; keep its capacity and minimum count"


def load(home: Home, parts: Mapping[str, Tensor]) -> None:
    """Take parts that fit. Optimizer state of a fixed table stays; that of a dynamic one begins anew, with its rows."""
    if not isinstance(home, Store) or not home.table.dynamic:
        if isinstance(home, Store) and not home.one_piece:
            for number, given in enumerate(parts["weight"].split(PART)):
                home.overwrite(number * PART, given)  # pyright: ignore[reportAttributeAccessIssue]  (such stores have it)
            return
        with torch.no_grad():
            for mine, given in zip(weight_of(home).split(PART), parts["weight"].split(PART), strict=True):
                mine.copy_(given)  # between devices a conversion makes a copy first
        return
    data = RowData(parts["ids"], parts["weight"], {}, parts.get("touched"), parts.get("counts"))
    home.restore(Snapshot(data, int(parts["clock"]), home.rule, parts.get("sketch")))


def load_all(homes: Mapping[str, Home], state: Mapping[str, Tensor], prefix: str) -> tuple[LoadReport, list[str]]:
    """Load the tables that are there and fit; returns the report, and the keys that are missing or do not fit.

    Torch tells nobody whether loading is strict, but raises afterwards if it is and a key is missing.
    """
    loaded, skipped, missing = [], {}, []
    for name, home in homes.items():
        parts = _under(state, f"{prefix}{name}.", (*keys(home.table), "ids"))  # ids tell what kind of table was saved
        absent = [key for key in keys(home.table) if key not in parts]
        reason = misfit(home.table, parts) or _sketch_misfit(home, parts) if "weight" in parts else None
        if reason is not None:
            missing.append(MisfitKey(f"{prefix}{name}.weight", reason))
        else:
            missing += [f"{prefix}{name}.{key}" for key in absent]
        if reason is not None or absent:
            skipped[name] = reason or f"found no {', '.join(absent)}"
        else:
            load(home, parts)
            loaded.append(name)
    return LoadReport(tuple(loaded), skipped), missing


def _under(state: Mapping[str, Tensor], prefix: str, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: state[prefix + name] for name in names if prefix + name in state}


def _rows(count: int, dim: int) -> str:
    return f"{count} rows of dim {dim}"


def _describe(part: object) -> str:
    return f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
