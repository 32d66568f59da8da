"""Workload: what a step asks of every table, stated or measured on a sample of the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hybridrec.data.dataset import Dataset
    from hybridrec.embedding.table import Table
    from hybridrec.optim.rule import RowRule

MOST_IDS = 2.0**60  # of a stretch of data
HALVINGS = 40
SHARES = (1 / 64, 1 / 16, 1 / 4, 1)  # of the sampled ids, at which distinct ones are counted


@dataclass(frozen=True)
class FeatureLoad:
    """A feature of a table: its mean ids per row of data, and how they are pooled ("none": not at all)."""

    name: str
    hotness: float = 1.0
    combiner: str = "sum"


@dataclass(frozen=True)
class TableLoad:
    """One table: its size in bytes and what a step reads of it.

    `growth` are measured pairs (ids, distinct ids among them), the larger the later; between and beyond them a power
    law holds. Without any, ids are taken for evenly spread, which has the fewest duplicates.

    >>> item = TableLoad("item", rows=1000, dim=8, state_per_row=4, growth=((100, 50), (400, 100)))
    >>> item.row_bytes(), item.distinct(1600), item.duplicate_share(400)
    (36, 200.0, 0.75)
    """

    name: str
    rows: int
    dim: int
    features: tuple[FeatureLoad, ...] = (FeatureLoad("id"),)
    element: int = 4  # bytes of a number of a row
    state_per_element: int = 0  # bytes of optimizer state beside each number
    state_per_row: int = 0  # and beside each row
    trainable: bool = True
    dynamic: bool = False
    growth: tuple[tuple[float, float], ...] = ()
    where: str | None = None  # where its rows are to live, if the table says so
    cache: float | None = None  # the share of rows that a device has at a time, if the table says so
    hashed: bool = False  # ids are spread over several rows
    on_disk: bool = False  # its cold rows are in files
    cold: int | None = None  # bytes of a cold row beside its state, if other than on a device

    def __post_init__(self) -> None:
        for name in ("rows", "dim", "element"):
            if getattr(self, name) < 1:
                raise ValueError(f"table {self.name!r}: {name} is {getattr(self, name)}; it must be at least 1")
        if self.cache is not None and not 0 < self.cache <= 1:
            raise ValueError(f"table {self.name!r}: cache is {self.cache}; it must be a share of the rows, up to 1")

    @property
    def cold_row_bytes(self) -> int:
        """Bytes of a cold row with its optimizer state.

        >>> TableLoad("item", rows=1000, dim=8, state_per_row=4, cold=12).cold_row_bytes
        16
        """
        return self.row_bytes() - (0 if self.cold is None else self.dim * self.element - self.cold)

    @property
    def takes_cache(self) -> bool:
        """Whether it can have hot and cold rows."""
        return not (self.dynamic or self.hashed) and self.where is None

    @property
    def hotness(self) -> float:
        """Ids per row of data, all features together."""
        return sum(each.hotness for each in self.features)

    @property
    def vectors(self) -> float:
        """Vectors per row of data that the model gets: one for a pooled feature, one per id of a sequence."""
        return sum(each.hotness if each.combiner == "none" else 1.0 for each in self.features)

    def row_bytes(self, width: int | None = None) -> int:
        """Bytes of a row with its optimizer state, or of `width` columns of it."""
        columns = self.dim if width is None else width
        key = 32 if self.dynamic else 0  # id, score and its place in the index
        return columns * (self.element + self.state_per_element) + self.state_per_row + key

    def distinct(self, ids: float) -> float:
        """Distinct ones among so many ids."""
        if ids <= 0:
            return 0.0
        found = _power_law(self.growth, ids) if self.growth else -self.rows * expm1(-ids / self.rows)
        return min(found, ids, float(self.rows))

    def missed(self, ids: float, hot: float) -> float:
        """Distinct ones among so many ids whose row is not among the `hot` ones, the last that were used.

        Hot are the distinct ids of a stretch of the data, and what goes on behind it brings new ones as it grows. It is
        exact for a cache that gives up the row that was used longest ago.

        >>> even = TableLoad("item", rows=1000, dim=8)
        >>> round(even.missed(10, hot=250), 2), round(0.75 * even.distinct(10), 2)
        (7.46, 7.46)
        """
        last = 1.0
        while self.distinct(last) < hot:
            last *= 2
            if last > MOST_IDS:
                return 0.0  # so many are never seen
        first = last / 2
        for _ in range(HALVINGS):
            middle = (first + last) / 2
            first, last = (middle, last) if self.distinct(middle) < hot else (first, middle)
        return max(0.0, min(self.distinct(last + ids) - self.distinct(last), self.distinct(ids)))

    def duplicate_share(self, ids: float) -> float:
        """The share of so many ids that repeat another one."""
        return 1 - self.distinct(ids) / ids if ids > 0 else 0.0


@dataclass(frozen=True)
class Workload:
    """All tables, and the rows of data that a device takes in a step."""

    tables: tuple[TableLoad, ...]
    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; a device takes at least one row in a step")
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two tables are called {twice!r}; names must differ")


def measure(
    dataset: Dataset,
    tables: Sequence[Table],
    rules: Mapping[str, RowRule] | None = None,
    *,
    batch_size: int | None = None,
    sample: int = 200_000,
) -> Workload:
    """The workload of tables on data, from about `sample` rows of it: ids per row, and how many of them repeat.

    `rules` are those of the row optimizer by table. The rows of a dynamic table are those that the ids of all the data
    would make, by the power law of the sample.
    """
    values, rows = _ids(dataset, {name for table in tables for name in table.features}, sample)
    if not rows:
        raise ValueError("the data has no rows to measure; name files that have some")
    total = max(dataset.num_rows or rows, rows)
    loads = [_load(table, values, rows, total, (rules or {}).get(table.name)) for table in tables]
    return Workload(tuple(loads), batch_size or dataset.batch_size)


def _ids(dataset: Dataset, features: set[str], sample: int) -> tuple[dict[str, list[Any]], int]:
    """The ids of a sample by feature, as arrays of batches, and its rows."""
    values: dict[str, list[Any]] = {name: [] for name in features}
    rows = 0
    for batch in dataset:
        ids = batch.ids
        for name, start, stop in zip(ids.names, ids.starts, ids.starts[1:], strict=False):
            if name in features:
                values[name].append(ids.values[start:stop].numpy().copy())  # batches are recycled
        rows += batch.ids.batch_size
        if rows >= sample:
            break
    return values, rows


def _load(table: Table, values: Mapping[str, list[Any]], rows: int, total: int, rule: RowRule | None) -> TableLoad:
    counts = {name: sum(map(len, values[name])) for name in table.features}
    features = tuple(
        FeatureLoad(name, table.group * counts[name] / rows, table.combiners[name]) for name in table.features
    )
    # batch by batch, so that what is counted together is what would meet in a step
    mixed = [part for parts in zip(*(values[name] for name in table.features), strict=True) for part in parts]
    growth = _growth(np.concatenate(mixed) if mixed else np.empty(0, np.int64))
    growth = tuple((ids * table.group, distinct * table.group) for ids, distinct in growth)
    state = rule.state if rule is not None else ()
    seen = _power_law(growth, total * sum(each.hotness for each in features)) if growth else 1.0
    return TableLoad(
        table.name,
        rows=max(1, min(table.capacity, round(seen))) if table.capacity is not None else table.fixed_rows,
        dim=table.dim,
        features=features,
        element=table.dtype.itemsize,
        state_per_element=4 * sum(not column.per_row for column in state),
        state_per_row=4 * sum(column.per_row for column in state),
        trainable=table.trainable,
        dynamic=table.dynamic,
        growth=growth,
        where=table.where,
        cache=None if table.cache is None else table.cached(table.fixed_rows) / table.fixed_rows,
        hashed=table.hashes is not None,
        on_disk=table.path is not None,
        cold=None if table.cold is None else table.cold_row_bytes(table.dim),
    )


def _growth(ids: Any) -> tuple[tuple[float, float], ...]:
    """How many of the first ids are distinct, at several lengths."""
    lengths: Iterable[int] = dict.fromkeys(round(len(ids) * share) for share in SHARES)
    return tuple((float(n), float(len(np.unique(ids[:n])))) for n in lengths if n)


def _power_law(growth: Sequence[tuple[float, float]], ids: float) -> float:
    """Distinct ids by straight lines in log-log through the measured points."""
    points = [(1.0, 1.0), *growth] if growth[0][0] > 1 else list(growth)
    if len(points) == 1:
        return ids
    after = next((i for i, (n, _) in enumerate(points) if n >= ids and i), len(points) - 1)
    (n0, d0), (n1, d1) = points[after - 1], points[after]
    slope = log(d1 / d0) / log(n1 / n0)
    return d1 * (ids / n1) ** slope
