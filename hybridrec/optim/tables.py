"""The tables inside a model, by the names under which an optimizer lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hybridrec.optim.group import RowGroup
from hybridrec.optim.handle import RowHandle
from hybridrec.optim.options import listed
from hybridrec.optim.rule import RowRule

if TYPE_CHECKING:
    from hybridrec.embedding.store import Store

Model = nn.Module | Iterable[nn.Module]


@dataclass(frozen=True, eq=False)
class TableRef:
    """A table: the name it is listed under, the group that updates it, and its name there."""

    name: str
    group: RowGroup
    table: str
    handle: RowHandle

    @property
    def store(self) -> Store:
        return self.group.stores[self.table]


def find_tables(model: Model) -> dict[str, TableRef]:
    """Every trainable table of the model, once, in the order of its modules.

    Where two have the same name, both are listed with the path of their module in front: "left.item".
    """
    found = [(path, group, table) for path, group in _groups(model) for table in group.handles]
    if not found:
        raise ValueError(
            f"no table to train was found in {_describe(model)}; give a model with an EmbeddingCollection inside, or "
            "make its nn.Embedding modules tables with hybridrec.fuse"
        )
    count = Counter(table for *_, table in found)
    tables: dict[str, TableRef] = {}
    for path, group, table in found:
        name = f"{path}.{table}" if path and count[table] > 1 else table
        if name in tables:
            raise ValueError(f"two tables would be listed as {name!r}; rename one of them")
        tables[name] = TableRef(name, group, table, group.handles[table])
    return tables


def choose(tables: dict[str, TableRef], names: Iterable[str] | None) -> dict[str, TableRef]:
    """The tables of these names, in the order of the model; all of them for None."""
    if names is None:
        return tables
    if isinstance(names, str):
        raise TypeError(f"tables is {names!r}; it must be a list of names: tables=[{names!r}]")
    wanted = list(names)
    for name in wanted:
        if name not in tables:
            raise ValueError(f"tables names {name!r}, which the model does not have; valid are {listed(tables)}")
    if not wanted:
        raise ValueError("tables is empty, so there is nothing to update; leave it out to update all")
    return {name: ref for name, ref in tables.items() if name in wanted}


def by_group(refs: Iterable[TableRef]) -> list[tuple[RowGroup, list[TableRef]]]:
    """The tables of each group together."""
    found: dict[int, tuple[RowGroup, list[TableRef]]] = {}
    for ref in refs:
        found.setdefault(id(ref.group), (ref.group, []))[1].append(ref)
    return list(found.values())


def expect_state(wanted: Sequence[tuple[Store, RowRule]]) -> None:
    """Raise if stores have no room for the state of these rules, all together; nothing has changed then."""
    for kind in {type(store) for store, _ in wanted}:
        kind.expect([(store, rule) for store, rule in wanted if type(store) is kind])


def _groups(model: Model) -> list[tuple[str, RowGroup]]:
    """The groups of a module, or of several modules under their place in the list."""
    from hybridrec.embedding.owner import groups_of  # here, since the embedding room imports this one

    if isinstance(model, nn.Module):
        return list(groups_of(model))
    found: dict[int, tuple[str, RowGroup]] = {}
    for place, part in enumerate(_modules(model)):
        for path, group in groups_of(part):
            found.setdefault(id(group), (f"{place}.{path}".rstrip("."), group))
    return list(found.values())


def _modules(model: Any) -> list[nn.Module]:
    if isinstance(model, Tensor) or not isinstance(model, Iterable):
        raise TypeError(f"a row optimizer takes a model or a list of models, not {_describe(model)}")
    parts = list(model)
    for part in parts:
        if not isinstance(part, nn.Module):
            raise TypeError(
                f"a row optimizer takes the model itself, not its parameters: among the modules is {_describe(part)}"
            )
    return parts


def _describe(model: Any) -> str:
    return type(model).__name__
