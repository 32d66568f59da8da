"""Tables on several ranks, for tests of checkpoints: shares by hand, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.owner import RowOwner
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import RowData, Store
from hybridrec.embedding.table import Table
from hybridrec.parallel.ranks import Ranks
from hybridrec.train.checkpoint import Checkpoints, Contents
from hybridrec.train.checkpoint import checkpoints as module
from tests.patience import PATIENCE

SCHEMES = ("row", "column", "table", "replicated", "grid")


def shares_of(scheme: str, world: int, dim: int) -> list[Share]:
    """What each rank holds of a table."""
    if scheme == "row":
        return [Share(rank, world) for rank in range(world)]
    if scheme == "table":
        return [Share() if rank == world // 2 else Share(empty=True) for rank in range(world)]
    if scheme == "replicated":
        return [Share(saves=rank == 0) for rank in range(world)]
    split = min(dim, world if scheme == "column" else 2)
    rows = 1 if scheme == "column" else max(1, world // split)
    ends = [dim * place // split for place in range(split + 1)]
    columns = [(ends[place], ends[place + 1] - ends[place]) for place in range(split)]
    held = [Share(row, rows, column, width) for row in range(rows) for column, width in columns][:world]
    return (
        held + [Share(empty=True)] * (world - len(held)) if len(held) == rows * split else shares_of("row", world, dim)
    )


class Held(nn.Module, RowOwner):
    """A model that is its tables, in a group of any kind, and a layer."""

    def __init__(self, stores: Mapping[str, Store], kind: Callable[..., Any] = TableGroup) -> None:
        super().__init__()
        self.top = nn.Linear(2, 1)
        self.group = kind(dict(stores), set(stores))

    @property
    def stores(self) -> Mapping[str, Any]:
        return self.group.stores


def store_of(table: Table, share: Share = Share(), seed: int = 3) -> DenseStore | HashStore:  # noqa: B008
    return (HashStore if table.dynamic else DenseStore)(table, seed, share)


def part_of(data: RowData, table: Table, share: Share) -> RowData:
    """The rows and columns of a share."""
    here, columns = share.owns(table, data.ids), slice(share.column, share.column + share.dim_of(table.dim))
    state = {name: part[here] if part.dim() == 1 else part[here][:, columns] for name, part in data.state.items()}
    scores = [None if part is None else part[here] for part in (data.touched, data.counts)]
    return RowData(data.ids[here], data.rows[here][:, columns], state, *scores)


def shuffled(data: RowData, seed: int) -> RowData:
    """The same rows in another order."""
    order = torch.randperm(len(data.ids), generator=torch.Generator().manual_seed(seed))
    scores = [None if part is None else part[order] for part in (data.touched, data.counts)]
    return RowData(data.ids[order], data.rows[order], {n: part[order] for n, part in data.state.items()}, *scores)


def same(a: RowData, b: RowData) -> bool:
    """Whether two stores hold the same, bit by bit, in whatever order."""
    mine, theirs = (shuffled(data, 0) if len(data.ids) == 0 else _sorted(data) for data in (a, b))
    pairs = [(mine.ids, theirs.ids), (mine.rows, theirs.rows), (mine.touched, theirs.touched)]
    pairs += [(mine.counts, theirs.counts), *((mine.state[name], theirs.state[name]) for name in mine.state)]
    return mine.state.keys() == theirs.state.keys() and all(
        a is b if a is None or b is None else a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def _sorted(data: RowData) -> RowData:
    order = data.ids.argsort()
    scores = [None if part is None else part[order] for part in (data.touched, data.counts)]
    return RowData(data.ids[order], data.rows[order], {n: part[order] for n, part in data.state.items()}, *scores)


# -- ranks that are threads -------------------------------------------------------------------------------------


class ThreadRanks(Ranks):
    """One of several threads that talk as ranks do."""

    def __init__(self, rank: int, world: int, said: list[Any], barrier: threading.Barrier, timeout: float) -> None:
        super().__init__(rank, world, timeout)
        self._said, self._barrier = said, barrier

    def all_told(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait()
        found = list(self._said)
        self._barrier.wait()
        return found


_mine = threading.local()


@contextmanager
def threads_are_ranks(monkeypatch: Any):
    with monkeypatch.context() as patch:
        patch.setattr(module, "ranks", lambda: getattr(_mine, "ranks", None))
        yield


def on_ranks(world: int, do: Callable[[int], Any], monkeypatch: Any, timeout: float = PATIENCE) -> list[Any]:
    """What `do(rank)` returns on each rank, or the exception that it raised."""
    said, barrier, results = [None] * world, threading.Barrier(world, timeout=PATIENCE), [None] * world

    def run(rank: int) -> None:
        _mine.ranks = ThreadRanks(rank, world, said, barrier, timeout)
        try:
            results[rank] = do(rank)
        except Exception as error:
            results[rank] = error

    with threads_are_ranks(monkeypatch):
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def saved(models: Sequence[Contents], folder: Path, step: int, monkeypatch: Any, **options: Any) -> Path:
    """The checkpoint that ranks with these contents write together."""

    def save(rank: int) -> None:
        with Checkpoints(folder) as checkpoints:
            checkpoints.save(models[rank], step, **options)

    failed = [error for error in on_ranks(len(models), save, monkeypatch) if error is not None]
    if failed:
        raise failed[0]
    found = Checkpoints(folder).latest()
    assert found is not None
    return found


def random_rows(table: Table, ids: Tensor, rule: Any, seed: int) -> RowData:
    """Rows with state and scores, as a table could have them."""
    draw = torch.Generator().manual_seed(seed)
    count = len(ids)
    rows = torch.randn(count, table.dim, generator=draw).to(table.dtype)
    shapes = {c.name: (count,) if c.per_row else (count, table.dim) for c in rule.state}
    state = {name: torch.rand(shape, generator=draw) for name, shape in shapes.items()}
    if not table.dynamic:
        return RowData(ids, rows, state)
    counted = repr(table.eviction) == "LFU()"
    touched, counts = torch.randint(0, 50, (count,), generator=draw), torch.randint(1, 9, (count,), generator=draw)
    return RowData(ids, rows, state, touched, counts if counted else None)
