"""EmbeddingCollection: the module that owns tables and turns packed ids into embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hybridrec.embedding import multi_hash, state
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.devices import device_of, refuse_on_gpu
from hybridrec.embedding.disk_store import DiskStore
from hybridrec.embedding.embeddings import Embeddings, UnknownName
from hybridrec.embedding.gpu import memory
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.mixed.grouping import make_group
from hybridrec.embedding.owner import RowOwner
from hybridrec.embedding.parameters import whole
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Store
from hybridrec.embedding.table import Table
from hybridrec.embedding.unfused import TableWeight, UnfusedLookup
from hybridrec.types import Batch, IdBlock, Ragged


class EmbeddingCollection(RowOwner, nn.Module):
    """Tables of embedding rows, looked up together for a block of ids.

    Rows are neither parameters nor buffers: a row optimizer of `hybridrec.optim` updates them, and `state_dict` carries
    them. `seed` and a table's name decide the initial value of every row. With `fused=False` the weights are plain
    parameters ("{table}.weight") for any torch optimizer, with gradients that are `sparse` or not. On a GPU, and where
    several processes train together, or a table is for servers, rows get their memory on first use, so that a Trainer
    or `hybridrec.shard` can say before where they lie.
    On a GPU, tables with `where="host"` are in memory of the host, and their vectors are copied to the GPU; and `room`
    columns are left behind the pooled vectors, for numbers that go into the layers with them: an `MLP` takes both
    without joining them first.

    >>> emb = EmbeddingCollection([Table("item", dim=4, rows=100, features=["item", "history"], combiner="mean")])
    >>> out = emb(IdBlock.from_lists({"item": [7, 8], "history": [[1], [2, 3]]}))
    >>> out.flat.shape, out["history"].shape
    (torch.Size([2, 8]), torch.Size([2, 4]))
    >>> emb
    EmbeddingCollection(
      table  dim  rows  dtype    features
      item   4    100   float32  item (mean), history (mean)
    )
    """

    load_report = state.LoadReport()  # what the last load_state_dict did

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        seed: int = 0,
        fused: bool = True,
        sparse: bool = True,
        device: torch.device | str = "cpu",
        room: int | None = None,
    ) -> None:
        super().__init__()
        self._tables = _by_name(tables)
        self._features = _features(self._tables)
        self._names = tuple(feature.name for feature in self._features)
        self._dims = tuple(self._tables[feature.table].dim for feature in self._features)
        self._sequences = tuple(feature.name for feature in self._features if feature.combiner == "none")
        hashes = {feature.name: self._tables[feature.table].hashes for feature in self._features}
        self._inner = multi_hash.Expansion(
            self._names, {name: found for name, found in hashes.items() if found is not None}
        )
        self.seed = whole("EmbeddingCollection", "seed", seed, least=0, most=2**64 - 1)
        self.fused = fused
        self.sparse = sparse
        self.device = device_of(device)
        self.room = None if room is None else whole("EmbeddingCollection", "room", room, least=0)
        if self.device.type != "cpu":
            refuse_on_gpu(self._tables.values(), fused, many=_one_of_many())
        if fused and not sparse:
            raise ValueError("sparse=False is about the gradients of parameters; it goes with fused=False")
        if not fused:
            for name, table in self._tables.items():  # past add_module, which refuses names such as "training" or "a.b"
                self._modules[name] = TableWeight(table, self.seed)
        served = any(table.where == "server" for table in self._tables.values())
        if not (fused and (served or self.device.type != "cpu" or _one_of_many())):
            self._allocate()

    @torch.inference_mode(False)  # rows outlive the mode in which they are first used
    def _allocate(self) -> None:
        """Give the rows memory."""
        self.expect_rows(dict.fromkeys(self._tables, WHOLE))
        self._stores: dict[str, Store] = {}
        if self.fused:
            self._stores.update((name, self.make_store(table)) for name, table in self._tables.items())
        self._connect()

    @property
    def allocated(self) -> bool:
        """Whether rows have memory yet."""
        return "_stores" in self.__dict__

    def give_caches(self, caches: Mapping[str, int | float | None]) -> None:
        """Have so many rows of these tables, or such a share, or all, on the GPU at a time; of stores made later."""
        self._tables |= {name: replace(self._table(name), cache=rows) for name, rows in caches.items()}

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ROWS and not self.allocated:
            self._allocate()
            return getattr(self, name)
        return super().__getattr__(name)

    def make_store(self, table: Table, share: Share = WHOLE) -> Store:
        """A store for a table of this collection, or for a share of it, with initial rows."""
        if self.device.type != "cpu" and not table.on_host:
            from hybridrec.embedding.gpu.hash_store import DeviceHashStore  # Triton comes with it
            from hybridrec.embedding.gpu.store import DeviceStore
            from hybridrec.embedding.gpu.tiered_store import TieredStore

            if table.dynamic:
                return DeviceHashStore(table, self.seed, self.device, share)
            rows = share.rows_of(table.fixed_rows)
            if table.cache is not None and rows:
                return TieredStore(table, self.seed, self.device, table.cached(rows), share)
            return DeviceStore(table, self.seed, self.device, share)
        if table.dynamic and table.path is not None and not share.empty:
            return DiskStore(table, self.seed, share)
        return (HashStore if table.dynamic else DenseStore)(table, self.seed, share)

    def expect_rows(self, shares: Mapping[str, Share]) -> None:
        """Raise if these shares of its tables together cannot fit a GPU and its host; on the CPU nothing is counted."""
        if self.device.type != "cpu":
            held = [(self._tables[name], share) for name, share in shares.items()]
            memory.refuse_rows(held, self.device, memory.free_bytes(self.device))
            memory.refuse_cold_rows(held)

    def _connect(self) -> None:
        """Make what looks up: it has native parts, and is made anew in copies."""
        if not self.fused:
            self.group = None
            self._lookup: Any = UnfusedLookup(self._features, self._weights(), self.sparse)
            return
        self.group: Any = make_group(self._stores, self.trainable, self.device)
        self._lookup = self._look_up()

    def _look_up(self) -> Any:
        """What looks up all features; only a GPU that has all tables leaves room behind their vectors."""
        room = {"room": self.room} if getattr(self.group, "leaves_room", False) else {}
        return self.group.lookup_fn(self._features, **room)

    def adopt(self, group: Any) -> None:
        """Use the stores of another group with the same tables, in place of those it has."""
        self._stores, self.group = dict(group.stores), group
        self._lookup = group.lookup_fn(self._features)

    @property
    def trainable(self) -> set[str]:
        """The names of the tables that take gradients."""
        return {name for name, table in self._tables.items() if table.trainable}

    def __getstate__(self) -> dict[str, Any]:
        return {name: part for name, part in self.__dict__.items() if name not in ("group", "_lookup")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.allocated:
            self._connect()

    # -- lookups ------------------------------------------------------------------------------------------

    def forward(self, ids: IdBlock | Batch | Mapping[str, Tensor | Ragged]) -> Embeddings:
        """The embeddings of every feature; other features of the block are ignored."""
        block = self._block(ids)
        flat, rows = self._lookup(self._inner(block), self.training)
        found = zip(self._sequences, rows, strict=True)
        sequences = {name: Ragged.trusted(part, block[name].offsets) for name, part in found}
        return Embeddings(self._names, self._dims, flat, sequences)

    def begin(self, ids: IdBlock | Batch) -> bool:
        """On several ranks: have vectors come while something else is done; their lookup must follow. Else False."""
        begin = getattr(self._lookup, "begin", None)
        if begin is None:
            return False
        block = self._block(ids)
        begin(self._inner.kept(block, self._inner(block)), self.training)
        return True

    def expect(self, ids: IdBlock | Batch) -> None:
        """Make now what lookups of blocks of this shape need on a GPU: during a capture nothing can be sent there."""
        if self.device.type != "cpu":
            self._lookup.layout(self._inner(self._block(ids)))

    def fetch(self, ids: IdBlock | Batch) -> None:
        """On a GPU: have ids come to tables on the host ahead of a lookup, if one comes; else nothing is done."""
        fetch = getattr(self._lookup, "fetch", None)
        block = ids.ids if isinstance(ids, Batch) else ids
        if fetch is not None and set(self._names) <= set(block.names):
            fetch(block)

    def prepare(self, ids: IdBlock | Batch, weight: float | None = None) -> None:
        """On several ranks, or with servers: send the ids of a block ahead of its lookup, which must come."""
        self._lookup.prepare(self._inner.kept(self._block(ids)), weight, self.training)

    def forget(self) -> None:
        """On several ranks, or with servers: what was prepared, and not looked up yet, will not be."""
        self._inner.forget()
        self._lookup.forget()

    def _block(self, ids: Any) -> IdBlock:
        if isinstance(ids, Mapping):
            self._check_features(tuple(ids))
            return IdBlock.from_ragged({name: ids[name] for name in self._names})
        block = ids.ids if isinstance(ids, Batch) else ids
        if not isinstance(block, IdBlock):
            raise TypeError(f"ids must be an IdBlock, a Batch or a mapping of features, got {type(ids).__name__}")
        self._check_features(block.names)
        if block.device != self.device:
            raise ValueError(
                f"ids are on {block.device}, but the rows on {self.device}; move them with "
                f"block.to({str(self.device)!r})"
            )
        return block

    def _check_features(self, names: tuple[str, ...]) -> None:
        if names == self._names:
            return
        there = set(names)  # of hundreds
        if absent := [name for name in self._names if name not in there]:
            have = ", ".join(map(str, names)) or "none"
            raise UnknownName(f"no feature {', '.join(map(repr, absent))} among the ids; there are {have}")

    @torch.no_grad()
    def lookup(self, name: str, ids: Tensor | Sequence[int]) -> Tensor:
        """The rows [..., dim] of ids [...] in a table: no gradient, no new rows; zeros for an id that has none.

        >>> EmbeddingCollection([Table("item", dim=4, rows=100)]).lookup("item", [3, 5]).shape
        torch.Size([2, 4])
        """
        table, read, keys = self._table(name), self._reader(name), torch.as_tensor(ids)
        if keys.numel() and (keys.is_floating_point() or keys.is_complex()):
            raise TypeError(f"ids must be whole numbers, got {keys.dtype}")
        flat = keys.reshape(-1).to(torch.int64)
        if table.hashes is None:
            rows = read(flat)
        else:
            spread = read(multi_hash.rows_of(flat, table.hashes).flatten())
            rows = spread.float().unflatten(0, (len(flat), table.group)).sum(1).to(spread.dtype)
        return rows.view(*keys.shape, table.dim)

    def _reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """What gives rows for ids: the store, or on several ranks all of them together."""
        together = getattr(self.group, "reader", None) if self.fused else None
        return self._homes()[name].lookup if together is None else together(name)

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name, as declared."""
        return dict(self._tables)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features, in the order of the output."""
        return self._names

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimension of every feature."""
        return self._dims

    def __getitem__(self, name: str) -> Store:
        """The store that holds a table's rows."""
        self._table(name)
        if not self.fused:
            raise TypeError(
                f"with fused=False a table is a parameter and has no store; see .get_parameter('{name}.weight')"
            )
        return self._stores[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            raise UnknownName(f"no table {name!r} in this collection; it has {', '.join(self._tables)}")
        return self._tables[name]

    def _weights(self) -> dict[str, TableWeight]:
        return {name: part for name, part in self._modules.items() if isinstance(part, TableWeight)}

    def _homes(self) -> Mapping[str, Store | TableWeight]:
        return self._stores if self.fused else self._weights()

    def extra_repr(self) -> str:
        told = any(table.where for table in self._tables.values())
        rows = [("table", "dim", "rows", "dtype", *["where"] * told, "features")]
        for table in self._tables.values():
            features = ", ".join(f"{name} ({combiner})" for name, combiner in table.combiners.items())
            kind = str(table.dtype).removeprefix("torch.")
            where = [table.where or "device"] * told
            rows.append((table.name, str(table.dim), table.size(), kind, *where, features))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    # -- state_dict ---------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for store in self._stores.values():  # parameters save themselves
            state.refuse_share(store)
            state.save(store, prefix, destination)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        strange: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, strange, error_msgs)
        homes = self._homes()
        for home in homes.values():
            state.refuse_share(home)
        mine = {f"{prefix}{name}.{key}" for name, home in homes.items() for key in state.keys(home.table)}
        unexpected_keys.extend(key for key in strange if key not in mine)
        self.load_report, missing = state.load_all(homes, state_dict, prefix)
        missing_keys.extend(missing)


_OF_ROWS = ("_stores", "group", "_lookup")  # attributes that are there once rows have memory


def _one_of_many() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _by_name(tables: Sequence[Table]) -> dict[str, Table]:
    if isinstance(tables, Table) or not all(isinstance(table, Table) for table in tables):
        raise TypeError(f"tables must be a list of Table, got {tables!r}")
    if not tables:
        raise ValueError("a collection needs at least one table")
    names = [table.name for table in tables]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"tables must have different names, but {', '.join(twice)} appears more than once")
    return {table.name: table for table in tables}


def _features(tables: Mapping[str, Table]) -> tuple[FeatureSpec, ...]:
    fed: dict[str, FeatureSpec] = {}
    for table in tables.values():
        for name, combiner in table.combiners.items():
            if name in fed:
                raise ValueError(
                    f"feature {name!r} feeds table {fed[name].table!r} and table {table.name!r}, but outputs are named "
                    "by feature; put one of the tables into a collection of its own"
                )
            fed[name] = FeatureSpec(name, table.name, combiner, table.group)
    return tuple(fed.values())
