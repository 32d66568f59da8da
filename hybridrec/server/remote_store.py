"""RemoteStore: the rows of a table on servers, as a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.policies import LFU
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE, Capture, RowData, Slots, Snapshot, Store, StoreFigures
from hybridrec.embedding.table import Table
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.server.client import Session
from hybridrec.server.declared import declaration_of, rule_to_json, step_numbers
from hybridrec.server.placement import by_server
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.remote_rows import RemoteCapture, arrays_of, rows_in
from hybridrec.server.row_messages import packed

if TYPE_CHECKING:
    from hybridrec.server.served_group import ServedGroup

_COPY = replace(WHOLE, saves=False)  # what trainers beside the first have: rows count once
CHUNK = 65536  # rows of a message
MISSING = 0xFFFFFFFF


class RemoteStore(Store):
    """A table whose rows are dealt out to all servers of a session, where it is declared already: a dynamic one here,
    a fixed one in `RemoteFixedStore`.

    What changes rows here is done once for all trainers, so each of them must call it alike; `load_alone` is for one
    trainer. For checkpoints, servers are dealt out to trainers. In a `group`, training goes by steps: see
    `ServedGroup`.
    """

    here = False

    def __init__(self, table: Table, seed: int, session: Session) -> None:
        super().__init__(table, seed, WHOLE if session.trainer == 0 else _COPY)
        self.session = session
        self.group: ServedGroup | None = None
        self.nan_rows = 0  # rows left out of pushes because their gradient was not finite

    # -- messages -----------------------------------------------------------------------------------------

    @property
    def servers(self) -> int:
        return self.session.servers.count

    @property
    def sketches(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] (nobody sets it)
        """Each server counts for itself."""
        return self.servers

    @property
    def capacity(self) -> int:
        """The rows that one server may hold."""
        return declaration_of(self.table, self.seed).capacity_of(self.servers)

    def _told(self, kind: Kind) -> list[Message]:
        """What all servers say of the table."""
        return self.session.servers.ask_all(kind, {"table": self.table.name})

    def _change_all(self, kind: Kind, fields: Mapping[str, Any] | None = None) -> None:
        """The same change on all servers."""
        self._all([self._change(server, kind, fields) for server in range(self.servers)])

    def _change(
        self,
        server: int,
        kind: Kind,
        fields: Mapping[str, Any] | None = None,
        buffers: Sequence[np.ndarray] = (),
        together: bool = True,
    ) -> Future[Message]:
        return self.session.change(server, kind, self.table.name, fields, buffers, together=together)

    def _all(self, futures: Sequence[Future[Message]]) -> list[Message]:
        """The answers of servers, in this order; what they refuse is an error of the table."""
        try:
            return [future.result() for future in futures]
        except ValueError as error:
            raise ValueError(str(error).split(": ", 1)[1]) from None

    def _ask_owners(
        self, ids: Tensor, ask: Callable[[int, np.ndarray], Future[Message]], among: range | None = None
    ) -> list[tuple[Any, Message]]:
        """Ask each server, or those `among` them, about its ids, if it has any; positions and answers."""
        dealt = enumerate(by_server(ids.numpy(), self.servers))
        places = [(server, at) for server, at in dealt if len(at) and (among is None or server in among)]
        answers = self._all([ask(server, at) for server, at in places])
        return [(torch.from_numpy(at), answer) for (_, at), answer in zip(places, answers, strict=True)]

    # -- a step -------------------------------------------------------------------------------------------

    @property
    def clock(self) -> int:
        self.settle()
        return max(answer.fields["clock"] for answer in self._told(Kind.TABLE))

    def advance(self) -> None:
        if self.group is not None:
            return self.group.over([self.table.name])
        self._change_all(Kind.CLOCK, {"clock": self.clock + 1})

    def settle(self) -> None:
        """Until what this trainer has pushed is applied."""
        if self.group is not None:
            self.group.drain()

    def prepare(self, ids: Tensor, step: int | None = None, *, train: bool = False) -> Slots:
        ids = self.checked(ids)
        unique, inverse = ids.unique(return_inverse=True)
        if not train:
            live = self.live(unique)
            return Slots(unique, inverse, numbered(live))
        if step is not None:
            self._change_all(Kind.CLOCK, {"clock": step})
        clock, numbers = self.clock, ids.numpy()
        found = self._ask_owners(ids, lambda n, at: self._change(n, Kind.PREPARE, {}, [numbers[at]]))
        live = torch.zeros(len(unique), dtype=torch.bool)
        for at, answer in found:
            live[inverse[at]] = torch.from_numpy(answer.array(0, "<u4", -1) != MISSING)
        return Slots(unique, inverse, numbered(live), clock)

    def live(self, ids: Tensor) -> Tensor:
        """Which of these ids have a row, bool [n]; does not wait for pushes, which change nothing of it."""
        live, numbers, table = torch.zeros(len(ids), dtype=torch.bool), ids.numpy(), {"table": self.table.name}
        for at, answer in self._ask_owners(
            ids, lambda n, at: self.session.servers.ask(n, Kind.LIVE, table, [numbers[at]])
        ):
            live[at] = torch.from_numpy(answer.array(0, "<u1", -1)).bool()
        return live

    @property
    def refuses(self) -> bool:
        """Whether an id may be without a row after a training lookup of it."""
        return self.table.dynamic and (self.table.admission is not None or self.table.eviction is None)

    def gather(self, slots: Slots) -> Tensor:
        return self.lookup(slots.ids)

    def lookup(self, ids: Tensor) -> Tensor:
        self.settle()
        ids = self.checked(ids)
        rows, numbers = torch.zeros(len(ids), self.dim), ids.numpy()
        for at, answer in self._ask_owners(ids, lambda n, at: self._find(n, numbers[at])):
            rows[at] = torch.from_numpy(answer.array(0, "<f4", -1, self.dim))
        return rows.to(self.dtype)

    def _find(self, server: int, ids: np.ndarray) -> Future[Message]:
        pairs = np.array([[0, len(ids)]], np.int64)
        return self.session.servers.ask(server, Kind.FIND, {"tables": [self.table.name]}, [pairs, ids])

    def update(self, slots: Slots, grads: Tensor, step: RowStep) -> None:
        self.check_rule(step)
        if list(grads.shape) != [len(slots), self.dim]:
            raise ValueError(f"gradients must be {[len(slots), self.dim]}, one per row, got {list(grads.shape)}")
        live = slots.live()
        ids, given = slots.ids[live], grads.float()[live].contiguous().numpy()
        if step.nan == "raise" and not np.isfinite(given).all():
            raise FloatingPointError(f"table {self.table.name!r}: some rows have a gradient that is not finite")
        line, numbers = np.array([step_numbers(step)]), ids.numpy()
        found = self._ask_owners(
            ids, lambda n, at: self._change(n, Kind.UPDATE, {}, [numbers[at], given[at].ravel(), line])
        )
        self.nan_rows += sum(int(answer.array(0, "<i8", 1, 3)[0, 1]) for _, answer in found)
        self.release(slots)

    # -- optimizer state ----------------------------------------------------------------------------------

    def attach(self, rule: RowRule) -> None:
        self._change_all(Kind.RULE, {"rule": rule_to_json(rule)})
        self.rule = rule

    def detach(self) -> None:
        self._change_all(Kind.RULE, {"rule": None})
        self.rule = None

    # -- all rows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(answer.fields["rows"] for answer in self._told(Kind.TABLE))

    def ids(self) -> Tensor:
        self.settle()
        parts = [torch.from_numpy(answer.array(0, "<i8", -1)) for answer in self._told(Kind.IDS)]
        return torch.cat(parts).sort().values

    def some_ids(self, count: int) -> Tensor:
        with self.capture() as held:  # all of them may be too many to travel
            return next(held.chunks(count)).ids.sort().values

    def read(self, ids: Tensor) -> RowData:
        self.settle()
        ids = self.checked(ids)
        numbers = ids.numpy()
        parts = [
            (at + first, rows_in(answer, self))
            for first in range(0, len(ids), CHUNK)
            for at, answer in self._ask_owners(
                ids[first : first + CHUNK],
                lambda n, at, first=first: self.session.servers.ask(
                    n, Kind.ROWS, {"table": self.table.name}, [numbers[first : first + CHUNK][at]]
                ),
            )
        ]
        made = self.no_rows(len(ids))._replace(ids=ids)
        for at, part in parts:
            for to, values in zip(_columns(made), _columns(part), strict=True):
                to[at] = values
        return made

    def no_rows(self, count: int = 0) -> RowData:
        """Room for so many rows."""
        columns = self.rule.state if self.rule else ()
        state = {c.name: torch.empty((count,) if c.per_row else (count, self.dim)) for c in columns}
        touched, counts = torch.empty(2, count, dtype=torch.int64).unbind()
        rows = torch.empty(count, self.dim, dtype=self.dtype)
        return RowData(torch.empty(count, dtype=torch.int64), rows, state, touched, counts if self.counted else None)

    @property
    def counted(self) -> bool:
        """Whether rows have counts."""
        return isinstance(self.table.eviction, LFU)

    def load(
        self,
        ids: Tensor,
        rows: Tensor,
        state: Mapping[str, Tensor] | None = None,
        touched: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        self.check(ids, rows, state, touched, counts)
        self._load(RowData(ids, rows, state or {}, touched, counts), together=True)

    def load_alone(self, data: RowData) -> None:
        """The same, where one trainer does it for all."""
        self.check(*data)
        self._load(data, together=False)

    def kept(self, data: RowData) -> RowData:
        """Those of these rows that servers must have, where they have none yet: all."""
        return data

    def _load(self, data: RowData, together: bool) -> None:
        self.settle()
        given = arrays_of(data, self.dtype)

        def send(server: int, at: np.ndarray) -> Future[Message]:
            return self._change(server, Kind.LOAD, *packed(given.at(at)), together=together)

        self._ask_owners(data.ids, send)

    def erase(self, ids: Tensor) -> None:
        self.settle()
        ids = self.checked(ids)
        numbers = ids.numpy()
        self._ask_owners(ids, lambda n, at: self._change(n, Kind.ERASE, {}, [numbers[at]]))

    def clear(self) -> None:
        self.settle()
        self._change_all(Kind.CLEAR)

    def dirty(self, since: int) -> Tensor:
        data = self.export()
        assert data.touched is not None
        return data.ids[data.touched >= since]

    # -- what it held -------------------------------------------------------------------------------------

    def capture(self) -> Capture:
        self.settle()
        return RemoteCapture(self, range(self.servers))

    @property
    def saved(self) -> Share:
        """The rows of every so-manieth server, so that all trainers save and load at the same time."""
        session = self.session
        count = min(session.trainers, self.servers)
        if session.trainer >= count:
            return Share(empty=True, saves=False)
        return WHOLE if count == 1 else Share(session.trainer, count, servers=self.servers)

    @property
    def mine(self) -> range:
        """The servers of that share."""
        return range(0) if self.saved.empty else range(self.saved.index, self.servers, self.saved.count)

    def capture_saved(self) -> Capture:
        self.settle()
        return RemoteCapture(self, self.mine)

    def snapshot(self) -> Snapshot:
        with self.capture() as now:
            parts = list(now.chunks())
            columns = [torch.cat(each) for each in zip(*(_columns(part) for part in parts), strict=True)]
            names = list(parts[0].state)
            state = dict(zip(names, columns[2 : 2 + len(names)], strict=True))
            data = RowData(columns[0], columns[1], state, *columns[2 + len(names) :])
            return Snapshot(data, now.clock, now.rule, now.sketch)

    def refill(self, held: Capture) -> None:
        """Each trainer gives its own servers what of the capture belongs there, and waits for nobody."""
        self.settle()
        self.rule = held.rule
        rule = None if held.rule is None else rule_to_json(held.rule)
        counts = None if held.sketch is None else held.sketch.numpy().reshape(self.servers, -1)
        most = min(held.most, self.capacity) if self.table.dynamic else 0  # of a fixed table, nobody knows how many
        about = {"rule": rule, "clock": held.clock, "most": most, "sketch": counts is not None}
        each = [[] if counts is None else [counts[n]] for n in range(self.servers)]
        self._all([self._change(n, Kind.REFILL, about, each[n], together=False) for n in self.mine])
        sent = [0] * self.servers
        for part in held.chunks(CHUNK):
            self.check(*part)
            part = self.kept(part)
            touched = torch.full_like(part.ids, held.clock) if part.touched is None else part.touched
            given = arrays_of(part._replace(touched=touched), self.dtype)

            def append(server: int, at: np.ndarray, given: Any = given) -> Future[Message]:
                fields, buffers = packed(given.at(at))
                sent[server] += 1
                return self._change(server, Kind.APPEND, {**fields, "part": sent[server] - 1}, buffers, together=False)

            self._ask_owners(part.ids, append, self.mine)
        self._all([self._change(n, Kind.FILLED, {}, together=False) for n in self.mine])

    def empty(self) -> None:
        """Hold nothing, as at the very beginning: no rows, no optimizer state, the clock at 0. All trainers call it."""
        self.settle()
        self._change_all(Kind.REFILL, {"rule": None, "clock": 0, "most": 0, "sketch": False})
        self._change_all(Kind.FILLED)
        self.rule = None

    # -- figures ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        return _added([answer.fields["counters"] for answer in self._told(Kind.TABLE)])

    def memory(self) -> dict[str, float]:
        """Of all servers together."""
        return _added([answer.fields["memory"] for answer in self._told(Kind.TABLE)])

    def ask_figures(self) -> Callable[[], StoreFigures]:
        """Those of all servers together, with one message to each."""
        asked = [self.session.servers.ask(n, Kind.TABLE, {"table": self.table.name}) for n in range(self.servers)]

        def figures() -> StoreFigures:
            told = [answer.result().fields for answer in asked]
            memory, counters = (_added([each[key] for each in told]) for key in ("memory", "counters"))
            return StoreFigures(sum(each["rows"] for each in told), memory.get("allocated", 0), counters)

        return figures

    # -- copies -------------------------------------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        raise TypeError("tables that lie on servers cannot be copied; copy the model before hybridrec.shard")

    def __deepcopy__(self, memo: dict) -> Store:
        self.__reduce__()


def numbered(live: Tensor) -> Tensor:
    """Slots of rows that have no slots here: their numbers, MISSING where there is no row."""
    return torch.arange(len(live)).masked_fill(~live, MISSING).to(torch.uint32)


def _columns(data: RowData) -> list[Tensor]:
    """All that belongs to rows."""
    scores = [part for part in (data.touched, data.counts) if part is not None]
    return [data.ids, data.rows, *data.state.values(), *scores]


def _added(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers of all servers."""
    return {name: sum(each[name] for each in told) for name in told[0]}
