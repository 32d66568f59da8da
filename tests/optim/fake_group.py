"""Tables and their queue of gradients in plain PyTorch: reference stores, updated by the reference formulas."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.embedding.owner import RowOwner
from hybridrec.embedding.reference_store import ReferenceStore
from hybridrec.embedding.table import Table
from hybridrec.ops.row_update.reference import sum_duplicates
from hybridrec.optim.handle import RowHandle
from hybridrec.optim.rule import RowRule, RowStep

DIM = 3


class FakeGroup:
    """What `hybridrec.optim` asks of a group, and a record of the steps it was told to make."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.stores = {table.name: ReferenceStore(table) for table in tables}
        self.handles = {name: RowHandle(self, name) for name, store in self.stores.items() if store.table.trainable}
        self.made: list[dict[str, RowStep]] = []
        self.scans = 0
        self._owners: dict[str, weakref.ref] = {}
        self._queue: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.stores}

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        taken = self._owners.get(name, lambda: None)()
        if taken is not None:
            raise ValueError(f"table {name!r} belongs to another {type(taken).__name__}; call its release()")
        self._owners[name] = weakref.ref(owner)
        self.stores[name].attach(rule)

    def release(self, name: str, owner: object) -> None:
        if self._owners.get(name, lambda: None)() is owner:
            del self._owners[name]
            self.stores[name].detach()

    def queue(self, name: str, ids: Tensor, grads: Tensor) -> None:
        self._queue[name].append((ids, grads))

    def pending(self, name: str) -> int:
        return len(self._queue[name])

    def waiting(self) -> set[str]:
        return {name for name in self.stores if self.pending(name)}

    def finite(self, names: Iterable[str]) -> bool:
        self.scans += 1
        return all(bool(grads.isfinite().all()) for name in names for _, grads in self._queue[name])

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None) -> float:
        norms = [self._sums(name)[1].norm() * (steps[name].grad_scale if steps else 1.0) for name in names]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def step(self, steps: Mapping[str, RowStep]) -> None:
        for name, step in steps.items():
            if step.nan == "raise" and not self._sums(name)[1].isfinite().all():
                raise FloatingPointError(f"table {name!r} has gradients that are not finite")
        for name, step in steps.items():
            ids, sums = self._sums(name)
            store = self.stores[name]
            store.update(store.prepare(ids), sums, step)
        self.made.append(dict(steps))
        self.discard(steps)

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            self._queue[name].clear()

    def _sums(self, name: str) -> tuple[Tensor, Tensor]:
        ids, grads = zip(*self._queue[name], strict=True)
        return sum_duplicates(torch.cat(ids), torch.cat(grads))


class FakeCollection(nn.Module, RowOwner):
    """A module that owns tables; called with ids by table, it gives their rows, and backward queues gradients."""

    def __init__(self, *tables: Table) -> None:
        super().__init__()
        self.group: Any = FakeGroup(tables)

    def forward(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._rows(name, wanted) for name, wanted in ids.items()}

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        self.group.stores[name].prepare(ids, train=True)
        rows = self.group.stores[name].lookup(ids).requires_grad_()
        rows.register_hook(lambda grad: self.group.queue(name, ids, grad.detach().clone()))
        return rows

    def weight(self, name: str) -> Tensor:
        """All rows of a table."""
        return self.group.stores[name].export().rows.clone()


def fixed(name: str, rows: int = 5, **options: Any) -> Table:
    return Table(name, DIM, rows=rows, **options)


def collection(*names: str) -> FakeCollection:
    """A collection with fixed tables of these names."""
    return FakeCollection(*map(fixed, names))


def batches(count: int, rows: int = 5, every_row: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Ids with duplicates, and what their rows are multiplied by to make a loss."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(count):
        ids = torch.randint(0, rows, (4,), generator=generator)
        ids = torch.cat([ids, torch.arange(rows)]) if every_row else ids
        found.append((ids, torch.randn(len(ids), DIM, generator=generator)))
    return found


def backward(emb: FakeCollection, name: str, ids: Tensor, factors: Tensor, scale: float | Tensor = 1.0) -> None:
    """Queue `factors`, times the scale, as the gradients of these ids."""
    ((emb({name: ids})[name] * factors).sum() * scale).backward()


def torch_weights(weight: Tensor, data: list[tuple[Tensor, Tensor]], sparse: bool, make: Any) -> Tensor:
    """What an optimizer of torch makes of the weights over these batches."""
    table = nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=sparse)
    optimizer = make(table.parameters())
    with torch.sparse.check_sparse_tensor_invariants():
        for ids, factors in data:
            optimizer.zero_grad()
            (table(ids) * factors).sum().backward()
            optimizer.step()
    return table.weight.detach()


def row_weights(emb: FakeCollection, name: str, data: list[tuple[Tensor, Tensor]], optimizer: Any) -> Tensor:
    """What a row optimizer makes of the weights of a table over these batches."""
    for ids, factors in data:
        backward(emb, name, ids, factors)
        optimizer.step()
    return emb.weight(name)
