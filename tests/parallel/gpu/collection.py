"""A collection whose rows are on the device under test, which the interpreter has on the CPU."""

from __future__ import annotations

import threading
from typing import Any

import torch

import hybridrec as hr
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.host import HostGroup
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Store
from tests.embedding.gpu.on_device import QUICK
from tests.gpu import DEVICE, INTERPRETED
from tests.ops.row_cache.caches import SMALL

SLOTS = 4  # of dynamic tables at first: they grow


class DeviceCollection(hr.EmbeddingCollection):
    """The same tables and lookups as on a GPU."""

    def __init__(self, tables: list[hr.Table], *, seed: int = 0) -> None:
        super().__init__(tables, seed=seed)
        self.device = torch.device(DEVICE)

    def make_store(self, table: hr.Table, share: Share = WHOLE) -> Store:
        if table.on_host:
            return (HashStore if table.dynamic else DenseStore)(table, self.seed, share)
        if table.dynamic:
            return DeviceHashStore(table, self.seed, DEVICE, share, SLOTS)
        rows = share.rows_of(table.fixed_rows)
        if table.cache is not None and rows:
            return TieredStore(table, self.seed, DEVICE, table.cached(rows), share, SMALL)
        return DeviceStore(table, self.seed, DEVICE, share)

    def _connect(self) -> None:
        here = {name: store for name, store in self._stores.items() if store.table.on_host}
        there = {name: store for name, store in self._stores.items() if name not in here}
        self.group = DeviceGroup(there, self.trainable, QUICK)
        if here:
            self.group = MixedGroup(self._stores, self.group, HostGroup(here, self.trainable, DEVICE), DEVICE)
        self._lookup = self.group.lookup_fn(self._features)


def interpret_in_turn() -> None:
    """Kernels of several threads one after the other: the interpreter knows one at a time."""
    from triton.runtime.interpreter import InterpretedFunction

    lock, run = threading.RLock(), InterpretedFunction.run

    def alone(self: Any, *args: Any, **options: Any) -> Any:
        with lock:
            return run(self, *args, **options)

    InterpretedFunction.run = alone  # pyright: ignore[reportAttributeAccessIssue]


if INTERPRETED:
    interpret_in_turn()
