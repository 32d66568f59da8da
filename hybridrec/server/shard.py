"""Shard: one server's share of every table, and all rules of who may do what with it. It knows nothing of a network.

Requests come to `handle`, from any thread; each gets one answer, at once or when its turn has come.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hybridrec.server.declaration import Declaration
from hybridrec.server.directory import Directory
from hybridrec.server.figures import Figures, resident
from hybridrec.server.group import Done, Group, Terms
from hybridrec.server.protocol import VERSION, Kind, Message, Refusal, failed, malformed
from hybridrec.server.rows import Rows
from hybridrec.server.table_requests import TableRequests

LOOK_AT_MEMORY = 64  # lookups between looks
READING = {
    Kind.HELLO,
    Kind.PING,
    Kind.STATS,
    Kind.FIND,
    Kind.ROWS,
    Kind.IDS,
    Kind.LIVE,
    Kind.TABLE,
}  # what changes nothing


class Shard:
    """Server `number` of `count`.

    >>> shard, answers = Shard(), []
    >>> shard.handle(Message(Kind.STATS), answers.append)
    >>> answers[0].fields["number"], answers[0].fields["tables"]
    (0, {})
    """

    def __init__(
        self,
        number: int = 0,
        count: int = 1,
        path: Path | None = None,
        saved: dict[str, Rows] | None = None,
        memory_limit: int | None = None,
    ) -> None:
        """With `path`, rows are kept in that directory, and those that are there are gone on with.

        With `saved`, it answers with these tables, and takes no training. Beyond `memory_limit` bytes in the memory of
        the process, lookups that could add rows are refused.
        """
        if not 0 <= number < count:
            raise ValueError(f"this is to be server {number} of {count}; numbers go from 0 to {count - 1}")
        self.number, self.count = number, count
        self.life = secrets.randbits(62)
        self._directory = None if path is None else Directory(path, number, count)
        self.session = -1 if self._directory is None else self._directory.session
        self.tables: dict[str, Rows] = dict(saved or {})
        self.read_only, self._memory_limit = saved is not None, memory_limit
        for declaration in () if self._directory is None else self._directory.tables.values():
            self._add(declaration)
        self.kept = bool(self.tables)  # whether rows of an earlier life are here
        self.groups: dict[int, Group] = {}
        self.figures = Figures()
        self._memory = 0
        self._lock, self._closed = threading.Lock(), False
        self._requests = TableRequests(self)

    @property
    def who(self) -> str:
        return f"server {self.number} of {self.count}"

    # -- requests -----------------------------------------------------------------------------------------

    def handle(self, request: Message, done: Done, owner: object = None) -> None:
        """Do what a request asks. `done` gets the answer and must not wait; `owner` is who sent it, for `forget`."""
        try:
            with self._lock, self.figures.timed(request):
                if not self._closed:  # else its connection ends too, and it is sent again to who comes after
                    self._handle(request, done, owner)
        except Refusal as refusal:
            self.figures.refused += 1
            done(request.error(refusal))
        except Exception as error:  # a fault of ours is told to the sender, and the others go on
            done(request.error(failed(self.who, error)))

    def _handle(self, request: Message, done: Done, owner: object) -> None:
        if self.read_only and request.kind not in READING:
            raise Refusal(
                "value", f"{self.who} holds a checkpoint to read from, so it cannot {request.kind.name.lower()}"
            )
        if request.kind in (Kind.LOOKUP, Kind.PUSH):
            group = self._group(request)
            self._check_memory(request)
            (group.lookup if request.kind == Kind.LOOKUP else group.push)(request, done, owner)
            return
        if request.kind == Kind.PING:
            return done(self._waiting(request, owner))
        answering: dict[Kind, Callable[[Message], Message]] = {
            Kind.HELLO: self._hello,
            Kind.ATTACH: self._attach,
            Kind.STATS: self._stats,
        }
        answer = answering.get(request.kind) or self._requests.handler(request.kind)
        if answer is None:
            raise malformed(f"a server cannot be asked {request.kind.name}")
        done(answer(request))

    def _check_memory(self, request: Message) -> None:
        """Refuse a training lookup where there is no room for the rows that it may add; looked at now and then."""
        if self._memory_limit is None or request.kind != Kind.LOOKUP or not request.fields.get("train"):
            return
        if self.figures.lookups % LOOK_AT_MEMORY == 1:
            self._memory = resident()
        if self._memory > self._memory_limit:
            raise Refusal(
                "failed",
                f"{self.who} has {self._memory:,} bytes in memory, more than its limit of {self._memory_limit:,}; "
                "raise --memory-limit, declare smaller capacities, or train with more servers",
            )

    def forget(self, owner: object) -> None:
        """A connection is gone: what it sent and was not done will be sent again."""
        with self._lock:
            for group in self.groups.values():
                group.forget(owner)

    def _waiting(self, request: Message, owner: object) -> Message:
        """Which of the sender's requests wait for their turn."""
        asked = set(map(str, request.take(numbers=list)["numbers"]))
        there = [each for group in self.groups.values() for each in group.waiting() if each.owner is owner]
        return request.answer({"waiting": [each.request.number for each in there if str(each.request.number) in asked]})

    def close(self) -> None:
        """Let go of all tables, so that another process may open those on disk; no request is answered any more."""
        with self._lock:
            self._closed = True
            self.groups.clear()
            self._requests.begin()
            self.tables.clear()

    def _hello(self, request: Message) -> Message:
        about = {"number": self.number, "count": self.count, "life": self.life, "kept": self.kept}
        return request.answer({**about, "version": VERSION, "session": self.session})

    def _stats(self, request: Message) -> Message:
        return request.answer(self._figures())

    # -- sessions -----------------------------------------------------------------------------------------

    def check_session(self, session: Any) -> None:
        """Refuse those who belong to another session than the present one."""
        if type(session) is not int or session != self.session:
            raise self._fenced(session)

    def _fenced(self, session: Any) -> Refusal:
        return Refusal(
            "fenced",
            f"{self.who} serves session {self.session}, this message is of session {session}: another start of the job "
            "is using the servers, or this one has not attached; stop the older one",
        )

    def _group(self, request: Message) -> Group:
        self.check_session(request.fields.get("session"))
        number = request.fields.get("group")
        if not isinstance(number, int) or number not in self.groups:
            raise malformed(f"there is no group {number!r}; attach its tables first")
        return self.groups[number]

    def _attach(self, request: Message) -> Message:
        given = request.take(
            **{"session": int, "group": int, "trainer": int, "trainers": int, "staleness": int},
            **{"tables": list, "wire": str, "gradient_wire": str},
        )
        declared = [Declaration.of(each) for each in given["tables"]]
        names = tuple(each.name for each in declared)
        if len(set(names)) != len(names):
            raise malformed(f"the tables {names} are declared; each may be declared once")
        terms = Terms(given["trainers"], given["staleness"], names, given["wire"], given["gradient_wire"])
        terms.check()
        if given["session"] < max(self.session, 0):
            raise self._fenced(given["session"])
        for each in declared:
            if each.name in self.tables:
                self.tables[each.name].declaration.agree(each, self.who)
        if given["session"] > self.session:
            self._begin(given["session"])
        self._join(given["group"], terms, declared)
        steps = self.groups[given["group"]].steps
        return request.answer({"pushed": steps.pushed, "rules": self._rules(names)})

    def _rules(self, names: tuple[str, ...]) -> dict[str, Any]:
        rules = {name: self.tables[name].rule for name in names}
        return {name: rule.to_json() if rule else None for name, rule in rules.items()}

    def _begin(self, session: int) -> None:
        """A new session: those who waited are told, and steps count from 0."""
        before, self.session = self.session, session
        if self._directory is not None:
            self._directory.session, self._directory.base = session, {}
            self._directory.write()
        for group in self.groups.values():
            group.refuse_all(self._fenced(before))
        self.groups.clear()
        self._requests.begin()

    def _join(self, number: int, terms: Terms, declared: list[Declaration]) -> None:
        if number in self.groups:
            return self.groups[number].terms.agree(terms)
        taken = {name: group for group, each in self.groups.items() for name in each.terms.tables}
        if both := [name for name in terms.tables if name in taken]:
            raise Refusal(
                "value", f"table {both[0]!r} is in group {taken[both[0]]} and cannot be in group {number} too"
            )
        for each in declared:
            if each.name not in self.tables:
                self._add(each)
        base = self._directory.base if self._directory is not None else {}
        self.groups[number] = Group(terms, [self.tables[name] for name in terms.tables], self.session, base)
        self._keep()

    def _add(self, declaration: Declaration) -> None:
        native = None if self._directory is None else self._directory.open(declaration, self.count)
        self.tables[declaration.name] = Rows(declaration, self.count, native)

    def _keep(self) -> None:
        """What must be known to go on after a kill is on disk."""
        if self._directory is not None:
            self._directory.tables = {name: rows.declaration for name, rows in self.tables.items()}
            self._directory.base = {name: at for group in self.groups.values() for name, at in group.base.items()}
            self._directory.write()

    def table(self, name: Any) -> Rows:
        """A table by its name, or a refusal."""
        if not isinstance(name, str) or name not in self.tables:
            raise Refusal("value", f"{self.who} has no table {name!r}; it has {', '.join(self.tables) or 'none'}")
        return self.tables[name]

    def rebase(self, table: str) -> None:
        """The clock of a table was set."""
        for group in self.groups.values():
            if table in group.terms.tables:
                group.rebase(table)
        self._keep()

    def cut(self, table: str) -> int | None:
        """The clock of a table after the steps that all have pushed, where lookups have moved it; else None."""
        found = (group.cut(table) for group in self.groups.values() if table in group.terms.tables)
        return next(found, None)

    def mark(self, table: str) -> None:
        """A table begins to be trained: on disk it says how far its group is."""
        for group in self.groups.values():
            if table in group.terms.tables:
                group.mark(table)

    # -- figures ------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What it holds and has done so far, as JSON values."""
        with self._lock:
            return self._figures()

    def _figures(self) -> dict[str, Any]:
        about = {"number": self.number, "count": self.count, "session": self.session, "kept": self.kept}
        waiting = sum(len(group.waiting()) for group in self.groups.values())
        seen = [group.steps.observed for group in self.groups.values()]
        observed = list(map(sum, zip_longest(*seen, fillvalue=0)))
        tables = {name: rows.figures() for name, rows in self.tables.items()}
        return {**about, **self.figures.to_json(), "waiting": waiting, "staleness": observed, "tables": tables}
