"""Homes of rows inside a model: collections, and modules that were fused. Each gives its tables to several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, distributed, nn

from hybridrec.embedding.collection import EmbeddingCollection
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.fused_modules import FusedModule
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import Store
from hybridrec.embedding.table import Table
from hybridrec.parallel.plan import Plan
from hybridrec.parallel.ranks import Ranks
from hybridrec.parallel.schemes import Piece, scheme_of

if TYPE_CHECKING:
    from hybridrec.server.placing import ServedTables

CHUNK = 65_536  # rows that rank 0 tells the others at a time

Stores = Mapping[str, Any]
Pieces = Mapping[str, tuple[Piece, ...]]
MakeGroup = Callable[[torch.device, Stores, set[str], Pieces], Any]


class Home(Protocol):
    """Tables that are looked up by one group."""

    path: str
    names: dict[str, str]  # of tables as a plan has them, to those of the group
    device: torch.device  # where rows are
    seed: int

    def table(self, name: str) -> Table:
        """The table of this name in the group."""
        ...

    def has_rows(self) -> bool:
        """Whether rows have values of their own, beside initial ones."""
        ...

    def old(self, name: str) -> Store:
        """The rows as they are before."""
        ...

    def give_caches(self, caches: Mapping[str, int | float]) -> None:
        """Have such shares of the rows of these tables hot, in stores that are made from now on."""
        ...

    def expect(self, shares: Mapping[str, Share]) -> None:
        """Raise if there is no room for these shares of all tables."""
        ...

    def make(self, name: str, share: Share, where: str) -> Store:
        """A store for a share, on the device or on its host."""
        ...

    def adopt(self, group: Any) -> None:
        """Look up in another group from now on."""
        ...


class CollectionHome:
    """The tables of a collection."""

    def __init__(self, path: str, collection: EmbeddingCollection) -> None:
        self.path, self._collection, self.device = path, collection, collection.device
        self.seed = collection.seed
        self.names = {name: name for name in collection.tables}

    def table(self, name: str) -> Table:
        return self._collection.tables[name]

    def has_rows(self) -> bool:
        return self._collection.allocated

    def old(self, name: str) -> Store:
        return self._collection[name]

    def give_caches(self, caches: Mapping[str, int | float]) -> None:
        self._collection.give_caches(caches)

    def expect(self, shares: Mapping[str, Share]) -> None:
        self._collection.expect_rows(shares)

    def make(self, name: str, share: Share, where: str) -> Store:
        table = self._collection.tables[name]
        if where != "device":  # where no table has a cache
            table = replace(table, where=where, cache=None)
        return self._collection.make_store(table, share)

    def adopt(self, group: Any) -> None:
        self._collection.adopt(group)


class FusedHome:
    """The tables of modules that were fused together."""

    def __init__(self, path: str, group: Any, modules: list[FusedModule]) -> None:
        self.path, self._group, self._modules = path, group, modules
        self.names = {name: name for name in group.stores}
        first = next(iter(group.stores.values()))
        self.device = torch.device("cpu") if isinstance(first, DenseStore) else first.device
        self.seed = first.seed

    def table(self, name: str) -> Table:
        old = self._group.stores[name]
        return old.table if isinstance(old, DenseStore) else replace(old.table, where="device")

    def has_rows(self) -> bool:
        return True

    def old(self, name: str) -> Store:
        return self._group.stores[name]

    def give_caches(self, caches: Mapping[str, int | float]) -> None:
        assert not caches, "its tables say where='device', and plans with a cache for them are refused"

    def expect(self, shares: Mapping[str, Share]) -> None:
        pass  # all rows are there already, so there is room for a share of them

    def make(self, name: str, share: Share, where: str) -> Store:
        old = self._group.stores[name]
        if isinstance(old, DenseStore):
            return DenseStore(old.table, old.seed, share)
        from hybridrec.embedding.gpu.store import DeviceStore  # Triton comes with it

        return DeviceStore(old.table, old.seed, old.device, share)

    def adopt(self, group: Any) -> None:
        for module in self._modules:
            name = module._store.table.name
            module.group, module._store = group, group.stores[name]  # pyright: ignore[reportAttributeAccessIssue]
            module._lookup = group.lookup_fn(module._lookup.features, module._lookup.remedy)


def homes_in(model: nn.Module) -> list[Home]:
    """All homes of rows in a model; tables of the same name have the path of their module before it."""
    homes = list(_homes(model))
    count = Counter(name for home in homes for name in home.names)
    for home in homes:
        twice = {name for name in home.names if count[name] > 1 and home.path}
        home.names = {f"{home.path}.{name}" if name in twice else name: name for name in home.names}
    return homes


def _homes(model: nn.Module) -> Iterator[Home]:
    fused: dict[int, FusedHome] = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection):
            if not module.fused:
                raise ValueError(
                    f"collection {path or type(model).__name__!r} has fused=False: its tables are parameters, which "
                    "every rank holds whole; make it with fused=True, or train it with torch's own DDP"
                )
            yield CollectionHome(path, module)
        elif isinstance(module, FusedModule):
            if id(module.group) not in fused:
                fused[id(module.group)] = FusedHome("", module.group, [])
                yield fused[id(module.group)]
            fused[id(module.group)]._modules.append(module)


def place_home(home: Home, plan: Plan, ranks: Ranks, make: MakeGroup, served: ServedTables | None = None) -> None:
    """Give the tables of a home to the ranks, and to servers, as the plan says; one process keeps the rest."""
    away = {name: home.table(name) for planned, name in home.names.items() if plan[planned].where == "server"}
    home.give_caches(_caches(home, plan))
    shares: dict[str, Share] = {}
    pieces: dict[str, tuple[Piece, ...]] = {}
    where: dict[str, str] = {}
    for planned, name in home.names.items():
        if name in away:
            continue
        placement, table = plan[planned], home.table(name)
        scheme = scheme_of(placement)
        shares[name] = scheme.share(table, placement, ranks.rank)
        pieces[name] = scheme.pieces(table, placement)
        where[name] = placement.where
    home.expect({name: share for name, share in shares.items() if where[name] == "device"})
    told = bool(ranks.largest(torch.tensor([int(home.has_rows())])))
    stores: dict[str, Any] = {}
    for name, share in shares.items():
        if served is not None and ranks.world == 1:
            stores[name] = home.old(name)
            continue
        stores[name] = home.make(name, share, where[name])
        if told:
            tell_rows(home.old(name), stores[name], ranks)
    if away:
        assert served is not None, "a plan that has servers comes with them"
        of_servers = served.stores(away, home.seed)
        for name, store in of_servers.items() if told else ():
            served.fill(home.old(name), store)
        stores = {name: (of_servers | stores)[name] for name in home.names.values()}
    trainable = {name for name in stores if stores[name].table.trainable}
    home.adopt(make(home.device, stores, trainable, pieces))


def _caches(home: Home, plan: Plan) -> dict[str, float]:
    """What is planned for tables that have no cache of their own; on CPUs all rows are in one memory."""
    if home.device.type == "cpu":
        return {}
    found = {name: plan[planned].cache for planned, name in home.names.items()}
    return {name: cache for name, cache in found.items() if cache is not None and home.table(name).cache is None}


@torch.no_grad()
def tell_rows(old: Store, new: Store, ranks: Ranks) -> None:
    """Fill a store with the rows of its share out of those that rank 0 holds."""
    ids = old.ids()
    total = ranks.told(len(ids))
    for first in range(0, total, CHUNK):
        size = min(CHUNK, total - first)
        mine = ids[first : first + size] if ranks.rank == 0 else torch.empty(size, dtype=torch.int64)
        rows = old.read(mine).rows.float() if ranks.rank == 0 else torch.empty(size, old.dim)
        for part in (mine, rows):
            _broadcast(part, ranks)
        here = new.share.owns(new.table, mine)
        columns = slice(new.share.column, new.share.column + new.dim)
        if bool(here.any()):
            new.load(mine[here], rows[here][:, columns].to(new.dtype).contiguous())


def _broadcast(values: Tensor, ranks: Ranks) -> None:
    if ranks.world > 1:
        distributed.broadcast(values, 0)
