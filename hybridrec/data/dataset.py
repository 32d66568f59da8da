"""`Dataset`: an immutable description of a pipeline from files to batches, and the iterators that run it."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hybridrec.data.cursor import Ahead, Cursor, Progress
from hybridrec.data.decode import Decoder
from hybridrec.data.effort import Effort
from hybridrec.data.iteration import BatchIterator
from hybridrec.data.join import Join
from hybridrec.data.loader import Loader
from hybridrec.data.mixing import Mixing
from hybridrec.data.partition import steps
from hybridrec.data.position import Era, Position
from hybridrec.data.reading import Cuts, Reading
from hybridrec.data.restore import Restore
from hybridrec.data.rows import RowSet, WorkerShare, last_rows
from hybridrec.data.schema import Schema
from hybridrec.data.shuffle import Shuffle
from hybridrec.data.stream_source import StreamRows
from hybridrec.remedy import remedied
from hybridrec.types import Batch

By = Literal["rows", "batch"]
Uneven = Literal["empty", "stop"]
VERSION = 1


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

    Each `iter()` is the next epoch, `set_epoch(n)` overrides. `state_dict()` after any batch says where the
    newest iterator stands; `load_state_dict()` in the same or another world goes on from there, every
    remaining row once.

    >>> import hybridrec as hr
    >>> ds = hr.data.table({"user": [1, 2, 3], "click": [0, 1, 0]}, label="click", batch_size=2)
    >>> [batch.ids["user"].values.tolist() for batch in ds]
    [[1, 2], [3]]
    """

    def __init__(
        self,
        rows: RowSet | StreamRows,
        schema: Schema,
        effort: Effort,
        batch_size: int,
        drop_last: bool = False,
    ) -> None:
        _check_batch_size(batch_size)
        schema.check_against(rows.schema)
        self._rows, self._schema, self._effort = rows, schema, effort
        self._batch_size, self._drop_last = batch_size, drop_last
        self._shuffle: Mixing | None = None
        self._shard = Shard()
        self._cursor = Cursor()

    # -- steps -----------------------------------------------------------------------------------------------

    def select(self, columns: Sequence[str]) -> Dataset:
        """Only these features, in this order; labels and sample weights stay."""
        return self._with(_schema=self._schema.select(columns))

    def shuffle(self, seed: int = 0, rows: int | Literal["all"] | None = None, lanes: int | None = None) -> Dataset:
        """Mix rows, differently in every epoch, as a function of (seed, epoch) alone.

        Row groups are taken in random order, `lanes` of them at a time, into windows of `rows` rows that are
        permuted. More of both mix better and need more memory; what is not stated is chosen to fit the memory
        ceiling. `rows="all"` is a full permutation, for data that fits.
        """
        if rows == "all" and isinstance(self._rows, StreamRows):
            raise ValueError('shuffle(rows="all") of a stream would read it to its end; state the rows of a window')
        return self._with(_shuffle=Mixing(seed, rows, lanes))

    def shard(self, rank: int, world: int, by: By = "rows", uneven: Uneven = "empty") -> Dataset:
        """The part of one rank: an even share of the rows, or its slice of every global batch.

        By "rows", each rank reads its own share in batches of `batch_size`. By "batch", `batch_size` is
        global and N ranks see the very batches of one rank, at the price that each decodes everything. Where
        ranks run out at different steps, "empty" uses every row once and gives empty batches to those that
        are done; "stop" ends all ranks together and leaves the last rows of some unread.
        """
        return self._with(_shard=Shard(rank, world, by, uneven))

    def shard_for_rank(self, by: By = "rows", uneven: Uneven = "empty") -> Dataset:
        """`shard()` for this process: from torch.distributed, else torchrun's RANK and WORLD_SIZE."""
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return self.shard(distributed.get_rank(), distributed.get_world_size(), by, uneven)
        return self.shard(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), by, uneven)

    def batch(self, batch_size: int, drop_last: bool | None = None) -> Dataset:
        """Another batch size."""
        _check_batch_size(batch_size)
        return self._with(_batch_size=batch_size, _drop_last=self._drop_last if drop_last is None else drop_last)

    def where(self, where: Any) -> Dataset:
        """Only rows for which the expression holds: a pyarrow Expression or [("day", ">=", 3), ...].

        Row groups are pruned by their statistics; the rest is counted once, reading the filter's columns
        alone, so that batches, shares and states stay exact.
        """
        return self._with(_rows=self._rows.where(where))

    def split(self, at: Any, by: str | None = None, seed: int | None = None) -> tuple[Dataset, Dataset]:
        """Two datasets without a common row: (train, valid) = ds.split(0.9).

        A fraction cuts the rows in file order, which for logs is time order; with `seed=` it draws single
        rows at random. With `by=` a column name, rows whose value is below `at` come first and the others
        second.
        """
        first, second = self._rows.split(at, by=by, seed=seed)
        return self._with(_rows=first), self._with(_rows=second)

    def join(self, table: Any, on: str, prefix: str = "") -> Dataset:
        """Append the columns of a table in memory by key; unmatched rows follow each column's null policy."""
        joined = Join(table, on, prefix)
        rows = self._rows.with_step(joined)
        new = pa.schema([rows.schema.field(name) for name in joined.columns])
        return self._with(_rows=rows, _schema=Schema([*self._schema, *Schema.infer(new)]))

    def restore(
        self,
        groups: Mapping[str, Sequence[str]],
        *,
        label: str | Sequence[str] = (),
        weight: str | None = None,
    ) -> Dataset:
        """Rows out of deduplicated blocks: {index column: [value columns]}; see `hybridrec.data.restore`.

        The schema is inferred anew from the restored columns, so the label and the weight are named here.
        """
        rows = self._rows.with_step(Restore(list(groups.items())))
        return self._with(_rows=rows, _schema=Schema.infer(rows.schema, label=label, weight=weight))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same rows under an edited schema."""
        schema.check_against(self._rows.schema)
        return self._with(_schema=schema)

    def _with(self, **changes: Any) -> Dataset:
        made = object.__new__(Dataset)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(changes)
        made._cursor = Cursor()
        return made

    # -- what it is ------------------------------------------------------------------------------------------

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
    def streamed(self) -> bool:
        """Whether its rows come from a stream, which may give them only once, and whose number is not known."""
        return isinstance(self._rows, StreamRows)

    @property
    def part(self) -> Shard:
        """Which part of the data this is: that of one rank of so many."""
        return self._shard

    @property
    def lost(self) -> dict[str, int]:
        """Files with rows left out under on_bad_file="skip", and how many (0: it could not be opened)."""
        lost = dict(self._rows.lost)
        for name, rows in self._cursor.lost.items():
            lost[name] = lost.get(name, 0) + rows
        return lost

    @property
    def left_out(self) -> dict[str, str]:
        """Columns of the files that cannot be read, with the reason (maps, structs inside lists)."""
        return self._rows.source.left_out

    def __len__(self) -> int:
        """Batches in a whole epoch of this shard."""
        return self._steps(self._rows.count())

    def __repr__(self) -> str:
        kinds = {kind: len(self._schema.of(kind)) for kind in ("id", "dense", "label", "weight", "extra")}
        features = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
        lines = [f"Dataset: {self._rows.source!r}", *self._rows.lines(), f"features({features})"]
        if self.left_out:
            lines.append(f"left_out({', '.join(self.left_out)})")
        if self._shuffle is not None:
            lines.append(repr(self._shuffle))
        if self._shard.world > 1:
            lines.append(
                f"shard({self._shard.rank}, {self._shard.world}, by={self._shard.by!r}, uneven={self._shard.uneven!r})"
            )
        lines.append(f"batch({self._batch_size}, drop_last={self._drop_last})")
        return "\n  .".join(lines)

    # -- running it ------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` runs."""
        self._cursor.begin(Position(epoch, (self._era(),)))

    def pinned(self, device: torch.device) -> Iterator[Batch]:
        """As `iter()`, with batches in page-locked memory, from which a GPU copies while the host goes on.

        That memory is used again once a batch is let go: hold on to a batch until its copy has run.
        """
        return self._next_epoch(device)

    def read_ahead(self) -> None:
        """Begin the next epoch while the newest iterator still runs, for a loop that will want it.

        Its threads start when those of this epoch have nothing left to decode, and both stay under the memory ceiling.
        The next `iter()` goes on with it, if it is of that epoch. A stream is not read ahead.
        """
        cursor = self._cursor
        before = None if cursor.loader is None else cursor.loader()
        if before is None or cursor.next is None or cursor.ahead is not None or self.streamed:
            return
        assert cursor.decoder is not None, "an iterator runs"
        made = self._run(cursor.next, cursor, Progress(cursor, cursor.next), cursor.decoder.device, before=before)
        cursor.ahead = Ahead(cursor.next, cursor.decoder.device, made)

    def drop_ahead(self) -> None:
        """Give up what `read_ahead` began."""
        self._cursor.drop_ahead()

    def __iter__(self) -> Iterator[Batch]:
        return self._next_epoch(None)

    def _next_epoch(self, device: torch.device | None) -> Iterator[Batch]:
        position = self._cursor.next or Position(0, (self._era(),))
        worker = get_worker_info()
        if worker is None:
            made = self._cursor.take_ahead(position, device)
            if made is None:
                made = self._run(position, self._cursor, Progress(self._cursor, position), device)
            self._cursor.begin(Position(position.epoch + 1, (self._era(),)))
            self._cursor.newest, self._cursor.loader = made.progress, weakref.ref(made.loader)
            return made
        if any(era.steps for era in position.eras):
            raise ValueError(
                "a loaded state cannot go on under DataLoader(num_workers > 0): "
                "its workers keep no common position; "
                "iterate the dataset itself, it has threads of its own"
            )
        if self._shard.by == "batch" and self._shard.world > 1:
            raise ValueError(
                'shard(by="batch") under DataLoader(num_workers > 0) would break the global batches; '
                "iterate the dataset "
                "itself, it has threads of its own, or shard by rows"
            )
        share = WorkerShare(self._shard.rank, self._shard.world, self._batch_size, worker.id, worker.num_workers)
        effort = dataclasses.replace(self._effort, threads=1)
        part = self._with(_rows=self._rows.for_worker(share), _shard=Shard(), _effort=effort)
        epoch = self._cursor.epoch_of_worker(worker.id, worker.num_workers)
        here = Position(epoch, (part._era(),))
        return part._run(here, part._cursor, Progress(part._cursor, here), device, keep_step=False)

    def _run(
        self,
        position: Position,
        cursor: Cursor,
        progress: Progress,
        device: torch.device | None,
        *,
        keep_step: bool = True,
        before: Loader | None = None,
    ) -> BatchIterator:
        shard, rows, decoder = self._shard, self._rows, cursor.decoder
        effort = self._effort if device is None else self._effort.beside_a_gpu()
        if decoder is None or decoder.device != device:
            decoder = cursor.decoder = Decoder(self._schema, rows.steps, device)
        reading = rows.reading(self._schema, effort, self._cursor.chunk_rows)
        shuffle = self._shuffle_of(reading)
        cursor.chunk_rows, cursor.shuffle = reading.chunk_rows, shuffle
        here, order = rows.walk(reading, shuffle, position, shard.rank)
        by_batch = shard.by == "batch"
        cuts = Cuts(self._batch_size, self._drop_last, shard.rank if by_batch else 0, shard.world if by_batch else 1)
        plan = reading.plan(cuts, shuffle, effort, last_rows(here.spans))
        loader = Loader(rows.source, decoder, order, plan, effort, before)
        total = self._steps(here.rows) if keep_step and here.rows >= 0 else None
        left = None if total is None else max(0, total - position.eras[-1].steps)
        return BatchIterator(loader, decoder.empty, left, keep_step and shard.world > 1, progress)

    def _shuffle_of(self, reading: Reading) -> Shuffle | None:
        if self._shuffle is None:
            return None
        if self._cursor.shuffle is not None:
            return self._cursor.shuffle
        return self._shuffle.settle(reading, self._effort.memory, self._rows.count)

    def _era(self) -> Era:
        return Era(self._shard.world, self._batch_size, 0, self._shard.by)

    def _steps(self, rows: int) -> int:
        """Steps over so many rows, the same on all ranks."""
        shard = self._shard
        return steps(rows, shard.world, self._batch_size, by=shard.by, uneven=shard.uneven, drop_last=self._drop_last)

    # -- where it stands -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands: plain JSON values, the same on all ranks."""
        if get_worker_info() is not None or self._cursor.ran_in_workers():
            raise RuntimeError(
                "state_dict() under DataLoader(num_workers > 0): the workers' positions are not known here; "
                "iterate the "
                "dataset itself, it has threads of its own"
            )
        newest = self._cursor.newest
        position = newest.position if newest is not None else self._cursor.next or Position(0, (self._era(),))
        chunk_rows, shuffle = self._cursor.chunk_rows, self._cursor.shuffle
        if chunk_rows is None:  # nothing was read yet
            reading = self._rows.reading(self._schema, self._effort)
            chunk_rows, shuffle = reading.chunk_rows, self._shuffle_of(reading)
        return {
            "version": VERSION,
            "fingerprint": self._rows.fingerprint(),
            "chunk_rows": chunk_rows,
            "shuffle": None if shuffle is None else dataclasses.asdict(shuffle),
            "position": position.to_json(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next `iter()` gives the rows not yet seen, in this world and batch size."""
        keys = {"version", "fingerprint", "chunk_rows", "shuffle", "position"}
        if not isinstance(state, Mapping) or state.get("version") != VERSION or set(state) != keys:
            found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"not a dataset state of version {VERSION} (found {found!r}); it has the keys {sorted(keys)}"
            )
        if state["fingerprint"] != self._rows.fingerprint():
            raise remedied(
                ValueError,
                f"the state is of other data: fingerprint {state['fingerprint']}, this dataset has "
                f"{self._rows.fingerprint()}",
                call="use the same files, where() and split(), or start a new epoch with set_epoch()",
                setting="name the files and the share of --valid that the run began with, or name none: they are kept "
                "in the folder of the run",
            )
        position = Position.from_json(state["position"])
        shuffle = None if state["shuffle"] is None else Shuffle(**state["shuffle"])
        agreed = shuffle is None if self._shuffle is None else self._shuffle.agrees_with(shuffle)
        if not agreed:
            raise remedied(
                ValueError,
                f"the state was made under {shuffle}, this dataset has {self._shuffle}",
                call="use the same shuffle()",
                setting="leave data.shuffle and data.seed as they were",
            )
        self._cursor.chunk_rows, self._cursor.shuffle = state["chunk_rows"], shuffle
        self._cursor.begin(position.resume(self._shard.world, self._batch_size, self._shard.by))


def _check_batch_size(rows: int) -> None:
    if not isinstance(rows, int) or isinstance(rows, bool):
        raise TypeError(f"batch_size={rows!r}: an integer is needed, not {type(rows).__name__}")
    if rows < 1:
        raise ValueError(f"batch_size={rows}: a batch has at least one row")
