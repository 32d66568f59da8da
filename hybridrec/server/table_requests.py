"""What may be asked of one table beside lookups and pushes of steps: the rest of the store contract, over messages.

A request that changes rows carries `by`, the trainer that wants it (-1: all of them, who send it alike), and `once`, a
number that it counts up: the first that comes with it is done, and those after it get the answer of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridrec.server.captures import Captures
from hybridrec.server.declaration import Rule, agree_on_rule
from hybridrec.server.protocol import Kind, Message, Refusal, malformed
from hybridrec.server.row_group import NUMBERS, Asked, Gradients, RowGroup
from hybridrec.server.row_messages import ROW_FIELDS, packed, unpacked
from hybridrec.server.rows import Rows

if TYPE_CHECKING:
    from hybridrec.server.shard import Shard

REMEMBERED = 16  # answers to one sender that are kept, should it ask again; it has fewer requests on their way
MOST_CLOCK = 2**32 - 2


class TableRequests:
    """Handlers by kind, for the tables of a shard, whose lock the caller holds."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._captures = Captures()
        self._done: dict[int, dict[int, Message]] = {}  # by `by` and `once`
        self._claimed: set[str] = set()  # tables whose rule somebody of this session has named
        self._refilling: dict[str, int] = {}  # the part that a table was given last
        reading = {
            Kind.FIND: self._find,
            Kind.ROWS: self._rows,
            Kind.IDS: self._ids,
            Kind.LIVE: self._live,
            Kind.TABLE: self._table,
            Kind.CAPTURE: self._capture,
            Kind.CHUNK: self._chunk,
            Kind.CLOSE: self._close,
        }
        changing = {
            Kind.RULE: self._rule,
            Kind.PREPARE: self._prepare,
            Kind.UPDATE: self._update,
            Kind.CLOCK: self._clock,
            Kind.LOAD: self._load,
            Kind.ERASE: self._erase,
            Kind.CLEAR: self._clear,
            Kind.REFILL: self._refill,
            Kind.APPEND: self._append,
            Kind.FILLED: self._filled,
        }
        self._handlers: dict[Kind, Callable[[Message], Message]] = {**reading}
        self._handlers |= {kind: self._only_once(do) for kind, do in changing.items()}

    def handler(self, kind: Kind) -> Callable[[Message], Message] | None:
        """What answers requests of a kind."""
        return self._handlers.get(kind)

    def begin(self) -> None:
        """A new session begins."""
        self._done.clear()
        self._claimed.clear()
        self._refilling.clear()
        self._captures.close_all()

    def _only_once(self, do: Callable[[Message], Message]) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            self._shard.check_session(request.fields.get("session"))
            by, once = request.fields.get("by"), request.fields.get("once")
            if type(by) is not int or type(once) is not int:
                raise malformed(
                    f"by and once of a message {request.kind.name} are {by!r} and {once!r}, no whole numbers"
                )
            done = self._done.setdefault(by, {})
            if once not in done:
                if done and once < min(done):
                    raise Refusal("value", f"request {once} by {by} was done long ago")
                done[once] = do(request)
                if len(done) > REMEMBERED:
                    del done[min(done)]
            kept = done[once]
            return Message(kept.kind, kept.fields, kept.buffers, request.number)

        return answer

    def _taken(self, request: Message, **types: type | tuple[type, ...]) -> tuple[Rows, dict[str, Any]]:
        """The table of a request that changes it, and its fields."""
        fields = request.take(session=int, by=int, once=int, table=str, **types)
        return self._shard.table(fields["table"]), fields

    # -- reading ------------------------------------------------------------------------------------------

    def _find(self, request: Message) -> Message:
        names = request.take(tables=list)["tables"]
        if len(set(map(str, names))) != len(names):
            raise malformed(f"the tables {names} are to be read; each may be named once")
        group = RowGroup([self._shard.table(name) for name in names])
        request.only(2)
        return request.answer({}, [group.lookup(group.asked(request), train=False)[0]])

    def _rows(self, request: Message) -> Message:
        rows = self._shard.table(request.take(table=str)["table"])
        request.only(1)
        return request.answer(*packed(rows.read(request.array(0, "<i8", -1))))

    def _ids(self, request: Message) -> Message:
        return request.answer({}, [self._shard.table(request.take(table=str)["table"]).ids()])

    def _live(self, request: Message) -> Message:
        rows = self._shard.table(request.take(table=str)["table"])
        request.only(1)
        return request.answer({}, [rows.live(request.array(0, "<i8", -1)).astype(np.uint8)])

    def _table(self, request: Message) -> Message:
        rows = self._shard.table(request.take(table=str)["table"])
        about = {"rows": len(rows), "clock": rows.native.clock, "rule": rows.rule.to_json() if rows.rule else None}
        figures = {"counters": rows.counters(), "memory": rows.memory()}
        return request.answer({**about, **figures, "declaration": rows.declaration.to_json()})

    def _capture(self, request: Message) -> Message:
        rows = self._shard.table(request.take(table=str)["table"])
        number, made = self._captures.open(rows, self._shard.cut(rows.name))
        about = {"capture": number, "clock": made.clock, "most": made.most}
        rule = made.rule.to_json() if made.rule else None
        sketch = [] if made.sketch is None else [made.sketch]
        return request.answer({**about, "rule": rule, "sketch": bool(sketch)}, sketch)

    def _chunk(self, request: Message) -> Message:
        fields = request.take(capture=int, first=int, size=int)
        if not 0 < fields["size"] <= 1 << 24 or fields["first"] < 0:
            raise malformed(f"a chunk is to begin at {fields['first']} and have {fields['size']} slots")
        capture = self._captures.get(fields["capture"])
        return request.answer(*packed(capture.chunk(fields["first"], fields["size"])))

    def _close(self, request: Message) -> Message:
        self._captures.close(request.take(capture=int)["capture"])
        return request.answer()

    # -- changing -----------------------------------------------------------------------------------------

    def _rule(self, request: Message) -> Message:
        """Make room for the state of a rule. The first time in a session, state that is there is gone on with."""
        rows, fields = self._taken(request, rule=(dict, type(None)))
        wanted = None if fields["rule"] is None else Rule.of(fields["rule"])
        first = rows.name not in self._claimed
        if first and wanted is not None and rows.rule is not None and len(rows):
            agree_on_rule(rows.name, rows.rule, wanted, self._shard.who)
        elif not first or wanted != rows.rule:
            rows.attach(wanted)
            self._shard.mark(rows.name)
        self._claimed.add(rows.name)
        return request.answer()

    def _prepare(self, request: Message) -> Message:
        rows, _ = self._taken(request)
        request.only(1)
        return request.answer({"clock": rows.native.clock}, list(rows.admit(request.array(0, "<i8", -1))))

    def _update(self, request: Message) -> Message:
        rows, _ = self._taken(request)
        request.only(3)
        ids = request.array(0, "<i8", -1)
        vectors, numbers = request.array(1, "<f4", len(ids) * rows.dim), request.array(2, "<f8", 1, NUMBERS)
        if rows.rule is None:
            raise Refusal("value", f"table {rows.name!r} has no optimizer on this server; attach its rule first")
        rows.check(ids)
        clock = rows.native.clock
        asked = Asked(np.zeros(1, np.int64), np.array([len(ids)]), ids)
        result = RowGroup([rows]).update([Gradients(asked, vectors, numbers)])
        rows.native.clock = clock
        return request.answer({}, [result])

    def _clock(self, request: Message) -> Message:
        rows, fields = self._taken(request, clock=int)
        rows.native.clock = _clock_of(fields["clock"])
        self._shard.rebase(rows.name)
        return request.answer()

    def _load(self, request: Message) -> Message:
        rows, fields = self._taken(request, **ROW_FIELDS)
        rows.load(unpacked(request, fields, rows, rows.rule))
        return request.answer()

    def _erase(self, request: Message) -> Message:
        rows, _ = self._taken(request)
        request.only(1)
        rows.erase(request.array(0, "<i8", -1))
        return request.answer()

    def _clear(self, request: Message) -> Message:
        self._taken(request)[0].clear()
        return request.answer()

    def _refill(self, request: Message) -> Message:
        """Empty the table; what is appended afterwards is all that it holds. The clock is that of the capture."""
        rows, fields = self._taken(request, rule=(dict, type(None)), clock=int, most=int, sketch=bool)
        request.only(int(fields["sketch"]))
        rows.empty_for(fields["most"], None if fields["rule"] is None else Rule.of(fields["rule"]))
        rows.native.clock = _clock_of(fields["clock"])
        if fields["sketch"]:
            _set_sketch(rows, request.array(0, "<u1", -1))
        self._shard.rebase(rows.name)
        self._refilling[rows.name] = -1
        self._claimed.add(rows.name)
        return request.answer()

    def _append(self, request: Message) -> Message:
        rows, fields = self._taken(request, part=int, **ROW_FIELDS)
        due = self._refilling.get(rows.name, -2) + 1
        if due < 0 or fields["part"] != due:
            raise Refusal("value", f"table {rows.name!r} is given part {fields['part']}, but part {due} comes next")
        try:
            rows.append(unpacked(request, fields, rows, rows.rule))
        except BaseException:
            rows.clear()
            del self._refilling[rows.name]
            raise
        self._refilling[rows.name] = due
        return request.answer()

    def _filled(self, request: Message) -> Message:
        rows, _ = self._taken(request)
        rows.filled()
        self._refilling.pop(rows.name, None)
        return request.answer()


def _clock_of(clock: int) -> int:
    if not 0 <= clock <= MOST_CLOCK:
        raise malformed(f"a clock is {clock}; it must be from 0 to {MOST_CLOCK}")
    return clock


def _set_sketch(rows: Rows, sketch: np.ndarray) -> None:
    try:
        rows.native.set_sketch(sketch.tobytes())
    except ValueError as error:
        raise Refusal("value", f"table {rows.name!r}: {error}") from None
