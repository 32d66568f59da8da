"""`Dataset`: an immutable description of a pipeline from files to batches, and the iterators that run it."""

from __future__ import annotations

import dataclasses
import logging
import mmap
import multiprocessing.context
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from hybridrec.data.decode import Decoder
from hybridrec.data.join import Join
from hybridrec.data.loader import BatchIterator, Cuts, Effort, Loader
from hybridrec.data.partition import steps
from hybridrec.data.position import Era, Position
from hybridrec.data.restore import Restore
from hybridrec.data.rows import RowSet, last_rows
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Shuffle
from hybridrec.data.stream_source import StreamRows
from hybridrec.types import Batch

By = Literal["rows", "batch"]
Uneven = Literal["empty", "stop"]
VERSION = 1
AUTO = 0  # rows of a shuffle window that the memory ceiling decides
WORKERS = 1024
log = logging.getLogger("hybridrec.data")


@dataclass(frozen=True)
class Shard:
    """Which part of the data a rank sees, and what happens when ranks run out at different steps."""

    rank: int = 0
    world: int = 1
    by: By = "rows"
    uneven: Uneven = "empty"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of {self.world}: ranks run from 0 to world - 1")
        if self.by not in ("rows", "batch"):
            raise ValueError(f'by={self.by!r}: shard by "rows" or by "batch"')
        if self.uneven not in ("empty", "stop"):
            raise ValueError(f'uneven={self.uneven!r}: "empty" (every row once) or "stop" (stop together)')


class Dataset(IterableDataset[Batch]):
    """Rows of files as packed batches. Every step returns a new Dataset; iterating one runs the pipeline.

    Each `iter()` is the next epoch, `set_epoch(n)` overrides. `state_dict()` after any batch says where the newest
    iterator stands; `load_state_dict()` in the same or another world goes on from there, every remaining row once.

    >>> import hybridrec as hr
    >>> ds = hr.data.table({"user": [1, 2, 3], "click": [0, 1, 0]}, label="click", batch_size=2)
    >>> [batch.ids["user"].values.tolist() for batch in ds]
    [[1, 2], [3]]
    """

    def __init__(self, rows: RowSet | StreamRows, schema: Schema, effort: Effort, batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one row")
        self._rows, self._schema, self._effort = rows, schema, effort
        self._batch_size, self._drop_last = batch_size, drop_last
        self._shuffle: tuple[int, int | None, int] | None = None  # seed, rows (None: all), lanes
        self._shard = Shard()
        self._cursor = _Cursor()

    # -- steps --------------------------------------------------------------------------------------------------------

    def select(self, columns: Sequence[str]) -> Dataset:
        """Only these features, in this order; labels and sample weights stay."""
        return self._with(_schema=self._schema.select(columns))

    def shuffle(self, seed: int = 0, rows: int | Literal["all"] | None = None, lanes: int = 8) -> Dataset:
        """Mix rows, differently in every epoch, as a function of (seed, epoch) alone.

        Row groups are taken in random order, `lanes` of them at a time, into windows of `rows` rows that are permuted.
        More rows mix better and need more memory; by default a window takes a third of the memory ceiling.
        `rows="all"` is a full permutation, for data that fits.
        """
        if rows is not None and rows != "all" and rows < 1:
            raise ValueError(f'rows={rows}: a window has at least one row, or is "all"')
        Shuffle(seed, None if rows in (None, "all") else rows, lanes)  # checks the values
        return self._with(_shuffle=(seed, None if rows == "all" else rows or AUTO, lanes))

    def shard(self, rank: int, world: int, by: By = "rows", uneven: Uneven = "empty") -> Dataset:
        """The part of one rank: an even share of the rows, or its slice of every global batch.

        By "rows", each rank reads its own share in batches of `batch_size`. By "batch", `batch_size` is global and N
        ranks see the very batches of one rank, at the price that each decodes everything. Where ranks run out at
        different steps, "empty" uses every row once and gives empty batches to those that are done; "stop" ends all
        ranks together and leaves the last rows of some unread.
        """
        return self._with(_shard=Shard(rank, world, by, uneven))

    def shard_for_rank(self, by: By = "rows", uneven: Uneven = "empty") -> Dataset:
        """`shard()` for this process: torch.distributed where it runs, else torchrun's RANK and WORLD_SIZE."""
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return self.shard(distributed.get_rank(), distributed.get_world_size(), by, uneven)
        return self.shard(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), by, uneven)

    def batch(self, batch_size: int, drop_last: bool | None = None) -> Dataset:
        """Another batch size."""
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one row")
        return self._with(_batch_size=batch_size, _drop_last=self._drop_last if drop_last is None else drop_last)

    def where(self, where: Any) -> Dataset:
        """Only rows for which the expression holds: a pyarrow Expression or [("day", ">=", 3), ...].

        Row groups are pruned by their statistics; the rest is counted once, reading the filter's columns alone, so
        that batches, shares and states stay exact.
        """
        return self._with(_rows=self._rows.where(where))

    def split(self, at: Any, by: str | None = None, seed: int | None = None) -> tuple[Dataset, Dataset]:
        """Two datasets without a common row: (train, valid) = ds.split(0.9).

        A fraction cuts the rows in file order, which for logs is time order; with `seed=` it draws single rows at
        random. With `by=` a column name, rows whose value is below `at` come first and the others second.
        """
        first, second = self._rows.split(at, by=by, seed=seed)
        return self._with(_rows=first), self._with(_rows=second)

    def join(self, table: Any, on: str, prefix: str = "") -> Dataset:
        """Append the columns of an in-memory table by key; rows without a match follow each column's null policy."""
        joined = Join(table, on, prefix)
        rows = self._rows.with_step(joined)
        known = set(self._schema.arrow().names)
        new = [field for field in rows.schema if field.name not in known]
        return self._with(_rows=rows, _schema=Schema([*self._schema, *Schema.infer(pa.schema(new))]))

    def restore(self, groups: Mapping[str, Sequence[str]]) -> Dataset:
        """Rows out of deduplicated blocks: {index column: [value columns]}; see `hybridrec.data.restore`."""
        rows = self._rows.with_step(Restore(list(groups.items())))
        labels = [feature.name for feature in self._schema.of("label")]
        weight = next((feature.name for feature in self._schema.of("weight")), None)
        return self._with(_rows=rows, _schema=Schema.infer(rows.schema, label=labels, weight=weight))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same rows under an edited schema."""
        return self._with(_schema=schema)

    def _with(self, **changes: Any) -> Dataset:
        made = object.__new__(Dataset)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        made._cursor = _Cursor()
        return made

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """What each column is; edit it and pass it back with `with_schema` or schema=."""
        return self._schema

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def num_rows(self) -> int:
        """Rows of the whole data set, all shards together."""
        return self._rows.count()

    @property
    def lost(self) -> dict[str, int]:
        """Files left out under on_bad_file="skip" so far, with the rows lost (0: unknown, the file could not be opened)."""
        return {**{name: 0 for name, _ in self._rows.source.bad}, **self._cursor.lost}

    def __len__(self) -> int:
        """Batches in a whole epoch of this shard."""
        return self._steps(self._rows.count())

    def __repr__(self) -> str:
        kinds = {kind: len(self._schema.of(kind)) for kind in ("id", "dense", "label", "weight", "extra")}
        features = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
        lines = [f"Dataset: {self._rows.source!r}", *self._rows.lines(), f"features({features})"]
        if self._shuffle is not None:
            seed, rows, lanes = self._shuffle
            lines.append(f"shuffle(seed={seed}, rows={'all' if rows is None else rows or 'auto'}, lanes={lanes})")
        if self._shard.world > 1:
            lines.append(f"shard({self._shard.rank}, {self._shard.world}, by={self._shard.by!r}, uneven={self._shard.uneven!r})")
        lines.append(f"batch({self._batch_size}, drop_last={self._drop_last})")
        return "\n  .".join(lines)

    # -- running it ---------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` runs."""
        self._cursor.begin(Position(epoch, (self._era(),)))

    def __iter__(self) -> Iterator[Batch]:
        position = self._cursor.next or Position(0, (self._era(),))
        worker = get_worker_info()
        if worker is None:
            self._cursor.begin(Position(position.epoch + 1, (self._era(),)))
            self._cursor.now = position
            return self._run(position, self._cursor)
        if len(position.eras) > 1 or position.eras[0].steps:
            raise ValueError(
                "a loaded state cannot go on under DataLoader(num_workers > 0): its workers keep no common position; "
                "iterate the dataset itself, it has threads of its own"
            )
        if self._shard.by == "batch" and self._shard.world > 1:
            raise ValueError(
                'shard(by="batch") under DataLoader(num_workers > 0) would break the global batches; iterate the dataset '
                "itself, it has threads of its own, or shard by rows"
            )
        epoch = position.epoch + self._cursor.epochs_of_worker(worker.id)
        share = Shard(self._shard.rank * worker.num_workers + worker.id, self._shard.world * worker.num_workers)
        part = self._with(_shard=share, _effort=dataclasses.replace(self._effort, threads=1))
        return part._run(Position(epoch, (part._era(),)), _Cursor(), keep_step=False)

    def _run(self, position: Position, cursor: _Cursor, keep_step: bool = True) -> BatchIterator:
        shard, rows = self._shard, self._rows
        decoder = cursor.decoder = cursor.decoder or Decoder(self._schema, rows.steps, self._effort.prefetch + 2)
        reading = rows.reading(self._schema, self._effort, self._batch_size, self._cursor.chunk_rows)
        shuffle = self._shuffle_of(reading.row_bytes)
        cursor.chunk_rows, cursor.shuffle = reading.chunk_rows, shuffle
        here, order = rows.walk(reading, shuffle, position, shard.rank)
        by_batch = shard.by == "batch"
        cuts = Cuts(self._batch_size, self._drop_last, shard.rank if by_batch else 0, shard.world if by_batch else 1)
        loader = Loader(rows.source, decoder, order, reading.plan(cuts, last_rows(here.spans)), self._effort)
        total = self._steps(here.rows) if keep_step and here.rows >= 0 else None
        left = None if total is None else max(0, total - position.eras[-1].steps)
        return BatchIterator(loader, decoder.empty, left, keep_step and shard.world > 1, cursor)

    def _shuffle_of(self, row_bytes: float) -> Shuffle | None:
        if self._shuffle is None:
            return None
        seed, rows, lanes = self._shuffle
        if rows == AUTO:
            rows = max(4096, int(self._effort.memory / 3 / row_bytes) >> 12 << 12)
            rows = self._cursor.shuffle.rows if self._cursor.shuffle is not None else rows
        needed = (self._rows.count() if rows is None else rows) * row_bytes
        if needed > self._effort.memory and rows != 4096:
            raise ValueError(
                f"a shuffle window of {'all' if rows is None else rows} rows needs about {needed / 2**20:,.0f} MiB, but "
                f"the loader may hold {self._effort.memory / 2**20:,.0f} MiB; pass memory={int(1.5 * needed)} or fewer rows"
            )
        return Shuffle(seed, rows, lanes)

    def _era(self) -> Era:
        return Era(self._shard.world, self._batch_size, 0, self._shard.by)

    def _steps(self, rows: int) -> int:
        """Steps over so many rows, the same on all ranks."""
        shard = self._shard
        return steps(
            rows, shard.world, self._batch_size, by=shard.by, uneven=shard.uneven, drop_last=self._drop_last
        )

    # -- where it stands ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands: plain JSON values, the same on all ranks, at any prefetch depth."""
        if get_worker_info() is not None or self._cursor.ran_in_workers():
            raise RuntimeError(
                "state_dict() under DataLoader(num_workers > 0): the workers' positions are not known here; iterate the "
                "dataset itself, it has threads of its own"
            )
        position = self._cursor.now or self._cursor.next or Position(0, (self._era(),))
        reading = self._rows.reading(self._schema, self._effort, self._batch_size, self._cursor.chunk_rows)
        shuffle = self._cursor.shuffle or self._shuffle_of(reading.row_bytes)
        return {
            "version": VERSION,
            "fingerprint": self._rows.fingerprint(),
            "chunk_rows": reading.chunk_rows,
            "shuffle": None if shuffle is None else dataclasses.asdict(shuffle),
            "position": position.to_json(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next `iter()` gives the rows not yet seen, in this world and batch size."""
        keys = {"version", "fingerprint", "chunk_rows", "shuffle", "position"}
        if not isinstance(state, Mapping) or state.get("version") != VERSION or set(state) != keys:
            found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"not a dataset state of version {VERSION} (found {found!r}); it has the keys {sorted(keys)}")
        if state["fingerprint"] != self._rows.fingerprint():
            raise ValueError(
                f"the state is of other data: fingerprint {state['fingerprint']}, this dataset has "
                f"{self._rows.fingerprint()}; use the same files, where() and split(), or start a new epoch with set_epoch()"
            )
        position = Position.from_json(state["position"])
        shuffle = None if state["shuffle"] is None else Shuffle(**state["shuffle"])
        mine = None if self._shuffle is None else (self._shuffle[0], self._shuffle[1], self._shuffle[2])
        if (shuffle is None) != (mine is None) or (
            shuffle is not None
            and mine is not None
            and (shuffle.seed, shuffle.lanes) != (mine[0], mine[2])
            or (shuffle is not None and mine is not None and mine[1] not in (AUTO, shuffle.rows))
        ):
            raise ValueError(f"the state was made under {shuffle}, this dataset has shuffle{mine}; use the same shuffle()")
        self._cursor.chunk_rows, self._cursor.shuffle = state["chunk_rows"], shuffle
        self._cursor.begin(position.resume(self._shard.world, self._batch_size, self._shard.by))


class _Cursor:
    """What changes while a dataset is iterated: its place, and what was lost. Shared with forked workers where noted."""

    def __init__(self) -> None:
        self.next: Position | None = None  # where the next iter() begins
        self.now: Position | None = None  # where the newest iterator stands
        self.chunk_rows: int | None = None
        self.shuffle: Shuffle | None = None
        self.decoder: Decoder | None = None  # kept over epochs with the memory of its batches
        self.lost: dict[str, int] = {}
        self._shared = mmap.mmap(-1, 4 * WORKERS)  # epochs begun by each DataLoader worker, seen by forked processes

    def begin(self, position: Position) -> None:
        self.next, self.now = position, None
        self._shared[:] = bytes(len(self._shared))

    def step(self) -> None:
        if self.now is not None:
            self.now = self.now.advance()

    def end(self, lost: dict[str, int]) -> None:
        self.lost.update(lost)
        self.now = None  # the next epoch's start
        if lost:
            log.warning("left out %d rows of %d bad files: %s", sum(lost.values()), len(lost), lost)

    def epochs_of_worker(self, worker: int) -> int:
        """How many epochs this worker has begun before; counts one more."""
        at = slice(4 * (worker % WORKERS), 4 * (worker % WORKERS) + 4)
        begun = int.from_bytes(self._shared[at], "little")
        self._shared[at] = (begun + 1).to_bytes(4, "little")
        return begun

    def ran_in_workers(self) -> bool:
        return any(self._shared[:])

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__, _shared=None, decoder=None)
        if multiprocessing.context.get_spawning_popen() is not None:
            self._shared[:4] = (1).to_bytes(4, "little")  # on its way into a spawned worker
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared = mmap.mmap(-1, 4 * WORKERS)
