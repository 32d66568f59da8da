"""Store: where the rows of one table live, and everything that may be done with them.

Kernels, checkpoints and placements know rows only by this contract; `reference_store.py` is what all stores agree with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from hybridrec.embedding.share import Share
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule, RowStep

MISSING = 0xFFFFFFFF  # the slot of an id that has no row: zeros, and no gradient
WHOLE = Share()  # what most stores have of their table


@dataclass(frozen=True, eq=False)
class Slots:
    """The rows that some ids lead to, each once: id position i has row `inverse[i]` of these.

    `step` is the clock of the store at which they were prepared for training, or None for reading.
    """

    ids: Tensor  # int64 [U], ascending
    inverse: Tensor  # int64 [N]
    slots: Tensor  # uint32 [U], MISSING where there is no row
    step: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def live(self) -> Tensor:
        """Which of them have a row, bool [U]."""
        return self.slots.view(torch.int32) != -1


class StoreFigures(NamedTuple):
    """What a store holds and has done."""

    rows: int  # that hold an id
    bytes: float  # allocated
    counters: Mapping[str, int]  # of a dynamic table, or one with a cache


class RowData(NamedTuple):
    """Rows with all that belongs to them; `store.load(*store.export())` changes nothing."""

    ids: Tensor  # int64 [n], ascending
    rows: Tensor  # [n, dim], in the table's dtype
    state: Mapping[str, Tensor]  # optimizer state by name: float32 [n, dim] or [n]
    touched: Tensor | None = None  # int64 [n]: clock of the last training lookup; dynamic tables only
    counts: Tensor | None = None  # int64 [n]: training lookups; where eviction needs them


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The whole content of a store, for a copy of it."""

    data: RowData
    clock: int
    rule: RowRule | None  # the update that `data.state` belongs to
    sketch: Tensor | None = None  # uint8: counts of ids that are not yet let in


class Capture(ABC):
    """What a store held at one moment, to be read once, in the order its rows lie in; `close` it when done.

    Rows that have expired are among them as long as they take room. There are at most `most` rows. `sketch` has the
    counts of ids that are not yet let in, of so many `sketches` one after another as the rows were in places.
    """

    sketches = 1

    def __init__(self, clock: int, rule: RowRule | None, sketch: Tensor | None, most: int) -> None:
        self.clock = clock
        self.rule = rule
        self.sketch = sketch
        self.most = most

    @property
    def host_bytes(self) -> int:
        """Memory of the host that it would take if all rows changed now; 0 where rows are there already."""
        return 0

    @abstractmethod
    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        """All rows, at most `size` at a time; where there are none, one chunk without rows."""

    @abstractmethod
    def close(self) -> None:
        """No more is read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CopiedCapture(Capture):
    """A copy of all rows."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.clock, snapshot.rule, snapshot.sketch, len(snapshot.data.ids))
        self._data = snapshot.data

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        ids, rows, state, touched, counts = self._data
        for part in torch.arange(len(ids)).split(size):
            of_rows = [None if column is None else column[part] for column in (touched, counts)]
            yield RowData(ids[part], rows[part], {name: s[part] for name, s in state.items()}, *of_rows)

    def close(self) -> None:
        pass


class Store(ABC):
    """The rows of one table, or a share of them: `table` is the declaration of the whole, ids are those of the whole.

    A training step is: `prepare` the ids (finds, admits and pins their rows), `gather` them, `update` them with
    their summed gradients, `release` them. Reading is `prepare(ids)` and `gather`, or `lookup`.
    """

    here = True  # whether rows are in memory of this machine
    sketches = 1  # places that count for themselves whom they let in
    one_piece = True  # of fixed tables: whether all rows lie side by side, as `weight`

    def __init__(self, table: Table, seed: int, share: Share = WHOLE) -> None:
        self.table = table
        self.seed = seed
        self.share = share
        self.rule: RowRule | None = None

    @property
    def dim(self) -> int:
        """The columns that are here."""
        return self.share.dim_of(self.table.dim)

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    # -- a step -------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def clock(self) -> int:
        """Training steps seen."""

    @abstractmethod
    def advance(self) -> None:
        """A training step is over: no row is pinned any more."""

    @abstractmethod
    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        """The rows of ids int64 [N]. Training lets new ids in, keeps scores, and pins the rows until `release`.

        `step` is the training step that they are for, by default the present one, `clock`.
        """

    @abstractmethod
    def gather(self, slots: Slots) -> Tensor:
        """The rows [U, dim], zeros for missing ones."""

    @abstractmethod
    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        """One optimizer step with the summed gradients float32 [U, dim] of the rows, after which they are released.

        Missing rows are passed over, as are those that were evicted since. The rule must be attached.
        """

    def check_rule(self, step: RowStep) -> None:
        """Refuse a step of another rule than the one whose state lies beside the rows."""
        if self.rule != step.rule:
            raise ValueError(
                f"table {self.table.name!r} keeps state for {self.rule}, not for {step.rule}; attach it first"
            )

    def release(self, slots: Slots) -> None:
        """The step of these rows is over; a second release of the same step does nothing."""
        if slots.step is not None and slots.step >= self.clock:
            self.advance()

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows [N, dim] of ids int64 [N], zeros for ids without a row; changes nothing."""
        slots = self.prepare(ids)
        return self.gather(slots)[slots.inverse]

    # -- optimizer state ----------------------------------------------------------------------------------

    @classmethod  # noqa: B027  (memory of the host is not counted, so most stores have nothing to say)
    def expect(cls, wanted: Sequence[tuple[Store, RowRule]]) -> None:
        """Raise if there is no room for the state of these rules beside the rows of stores of this kind."""

    @abstractmethod
    def attach(self, rule: RowRule) -> None:
        """Make room for the state of this rule beside every row, at its fill; what was there is dropped."""

    @abstractmethod
    def detach(self) -> None:
        """Drop the optimizer state."""

    # -- all rows -----------------------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int:
        """Rows that hold an id."""

    @abstractmethod
    def ids(self) -> Tensor:
        """The ids that have a row, int64 [n], ascending."""

    def some_ids(self, count: int) -> Tensor:
        """So many ids that have a row, or all, always the same ones of the same rows."""
        return self.ids()[:count]

    @abstractmethod
    def read(self, ids: Tensor) -> RowData:
        """The rows of these ids, which must exist, with all that belongs to them."""

    @abstractmethod
    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Overwrite rows, or add them where a dynamic table lacks them; state not given goes back to its fill."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """A copy of everything."""

    def capture(self) -> Capture:
        """The same to be read later, without a copy where the store can do without."""
        return CopiedCapture(self.snapshot())

    @property
    def saved(self) -> Share:
        """What it puts into a checkpoint and takes from one: all that it holds, unless stores of other ranks help."""
        return self.share

    def capture_saved(self) -> Capture:
        """A capture of just that."""
        return self.capture()

    def restore(self, held: Snapshot | Capture) -> None:
        """Hold what another store held, and nothing else; state that is not there begins at its fill."""
        if isinstance(held, Snapshot):  # what does not fit is refused before anything changes
            self.check(held.data.ids, held.data.rows, None, held.data.touched, held.data.counts)
            held = CopiedCapture(held)
        self.refill(held)

    @abstractmethod
    def refill(self, held: Capture) -> None:
        """Hold what the capture reads, and nothing else."""

    @abstractmethod
    def erase(self, ids: Tensor) -> None:
        """Forget these ids; a fixed table gives their rows the initial values again."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all ids; a fixed table gives all rows their initial values again."""

    @abstractmethod
    def dirty(self, since: int) -> Tensor:
        """Ids of all rows that training may have changed since the clock was `since`; some may be unchanged."""

    def checked(self, ids: Tensor) -> Tensor:
        """The ids as native code reads them, or an error."""
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.device.type != "cpu":
            raise TypeError(
                f"table {self.table.name!r}: ids must be int64 [n] on the cpu, got {ids.dtype} {list(ids.shape)} on "
                f"{ids.device}; convert them with ids.flatten().long().cpu()"
            )
        return ids.contiguous()

    def check(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """Refuse what `load` cannot take, before anything changes."""
        who, count = f"table {self.table.name!r}", len(self.checked(ids))
        if not self.table.dynamic and count and not 0 <= ids.numpy().min() <= ids.numpy().max() < self.table.fixed_rows:
            beyond = ids[(ids < 0) | (ids >= self.table.fixed_rows)]
            raise ValueError(f"{who} has rows 0 … {self.table.fixed_rows - 1}, but id {int(beyond[0])} is to be loaded")
        self.check_owned(ids)
        columns = {column.name: column.width(self.dim) for column in self.rule.state} if self.rule else {}
        if strange := [name for name in state or {} if name not in columns]:
            raise ValueError(f"{who} has no state {strange[0]!r}; it has {', '.join(columns) or 'none'}")
        per_row = {column.name for column in self.rule.state if column.per_row} if self.rule else set()
        parts = {"rows": rows, "touched": touched, "counts": counts, **(state or {})}
        for name, part in parts.items():
            shape = [count] if name in per_row or name in ("touched", "counts") else [count, self.dim]
            if part is not None and list(part.shape) != shape:
                raise ValueError(f"{who}: {name} must be {shape}, got {part.dtype} {list(part.shape)}")

    def check_owned(self, ids: Tensor) -> None:
        """Refuse ids whose row is in another store."""
        if (self.share.count == 1 and not self.share.empty) or bool((here := self.share.owns(self.table, ids)).all()):
            return
        raise ValueError(
            f"table {self.table.name!r}: the row of id {int(ids[~here][0])} is not in {self.share}; share.owns tells "
            "which rows are"
        )

    def export(self) -> RowData:
        """All rows in order of id."""
        return self.read(self.ids())

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        """All rows in order of id, `size` at a time."""
        return (self.read(part) for part in self.ids().split(size) if len(part))

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Every id with its row, in order of id."""
        for part in self.chunks():
            yield from zip(part.ids.tolist(), part.rows, strict=True)

    # -- figures ------------------------------------------------------------------------------------------

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """What happened so far, by name."""

    @abstractmethod
    def memory(self) -> dict[str, float]:
        """Bytes by purpose, and the bytes per row beyond row and state."""

    def ask_figures(self) -> Callable[[], StoreFigures]:
        """What gives its figures; where rows are elsewhere, they are on their way by then: ask all stores first."""
        # Other tables count nothing that a run records, and a GPU that is asked would have to be waited for.
        counters = self.counters if self.table.dynamic or self.table.cache is not None else dict[str, int]
        return lambda: StoreFigures(len(self), self.memory().get("allocated", 0), counters())

    def __bool__(self) -> bool:
        return True  # a store without rows is still a store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table.name!r}, {len(self):,} rows of {self.dim} {self.dtype})"

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple:
        return _remade, (type(self), self.table, self.seed, self.snapshot(), self.share)

    def __deepcopy__(self, memo: dict) -> Store:
        return _remade(type(self), self.table, self.seed, self.snapshot(), self.share)


def _remade(kind: type[Store], table: Table, seed: int, snapshot: Snapshot, share: Share) -> Store:
    made = kind(table, seed, share)
    made.restore(snapshot)
    return made
