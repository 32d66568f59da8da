"""Group: tables whose lookups and pushes go by common steps, and the requests that wait for their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybridrec.server.protocol import Message, Refusal, failed, malformed
from hybridrec.server.row_group import NUMBERS, Asked, Found, Gradients, RowGroup, Tag, tagged
from hybridrec.server.rows import Rows
from hybridrec.server.steps import Steps, Turn
from hybridrec.server.wire_types import WIRE, on_wire, received

Done = Callable[[Message], None]  # takes the answer to a request, once; must not wait
MOST_STEP, MOST_PART = 2**46, 2**16
LOOKUPS = 2**32  # from here on, sources of tags are trainers that look up


class Terms(NamedTuple):
    """What all trainers of a group must say alike."""

    trainers: int
    staleness: int
    tables: tuple[str, ...]
    wire: str
    gradient_wire: str

    def check(self) -> None:
        """Refuse numbers that are none."""
        if not 1 <= self.trainers <= 4096 or not 0 <= self.staleness <= 1024:
            raise malformed(f"there are {self.trainers} trainers with staleness {self.staleness}; that cannot be")
        for wire in (self.wire, self.gradient_wire):
            if wire not in WIRE:
                raise malformed(f"vectors are to travel as {wire!r}; valid are {', '.join(WIRE)}")

    def agree(self, others: Terms) -> None:
        """Refuse a trainer that says otherwise than those before it."""
        for key, mine in self._asdict().items():
            if mine != (theirs := getattr(others, key)):
                raise Refusal("mismatch", f"{key} is {theirs!r} for this trainer and {mine!r} for one before it")


@dataclass(eq=False)
class Waiting:
    """A request that waits: who sent it, where its answer goes, and what it is about."""

    request: Message
    done: Done
    owner: object
    trainer: int
    step: int
    part: int = 0
    asked: Asked | None = None
    gradients: Gradients | None = None


class Group:
    """Lookups and pushes of one group, one at a time; whoever calls holds the lock of the shard."""

    def __init__(self, terms: Terms, rows: Sequence[Rows], session: int, base: Mapping[str, int] | None = None) -> None:
        """`base` is of a session that goes on: the clocks of its tables at step 0."""
        self.terms, self.session = terms, session
        self.rows = RowGroup(rows)
        tags = self._tags()
        self.steps = Steps(terms.trainers, terms.staleness, pushed=[min(each, default=-1) for each in tags])
        self._partly = max((step for each in tags for step in each), default=-1)  # the last step some tables may have
        clocks = dict(zip(terms.tables, self.rows.clocks, strict=True))
        self.base = {name: (base or {}).get(name, clock) for name, clock in clocks.items()}
        self._found: deque[tuple[int, int, Found]] = deque(maxlen=terms.trainers * (terms.staleness + 2))
        self.lookups: list[Waiting] = []
        self.pushes: dict[tuple[int, int], Waiting] = {}

    def _tags(self) -> list[list[int]]:
        """Of each trainer: the last step of this session that each table on disk has seen."""
        kept = [rows for rows in self.rows.rows if rows.on_disk and rows.rule is not None]
        return [
            [tagged(rows, self._source(trainer), self.session) for rows in kept]
            for trainer in range(self.terms.trainers)
        ]

    def mark(self, table: str) -> None:
        """A table on disk that has a rule from now on has seen all steps so far."""
        rows = self.rows.rows[self.terms.tables.index(table)]
        if rows.on_disk and rows.rule is not None:
            clock = rows.native.clock
            for trainer, step in enumerate(self.steps.pushed):
                if step >= 0:
                    RowGroup([rows]).update([], Tag(self._source(trainer), self.session, step))
            rows.native.clock = clock

    def _source(self, trainer: int) -> int:
        """Whose pushes are one update: a trainer's; without staleness, those of all."""
        return 0 if self.terms.staleness == 0 else 1 + trainer

    def rebase(self, table: str) -> None:
        """The clock of a table was set: the step that comes next has it."""
        clock = self.rows.clocks[self.terms.tables.index(table)]
        self.base[table] = clock - (min(self.steps.pushed) + 1)

    def cut(self, table: str) -> int | None:
        """The clock of a table after the steps that all have pushed, where lookups have moved it; else None."""
        pushed, now = min(self.steps.pushed), self.rows.clocks[self.terms.tables.index(table)]
        clock, looked = self.base[table] + pushed + 1, max(step for step, _ in self.steps.looked)
        return clock if self.terms.staleness and (now != clock or looked > pushed) else None

    # -- lookups ------------------------------------------------------------------------------------------

    def lookup(self, request: Message, done: Done, owner: object) -> None:
        """Answer a lookup now, or when its turn has come."""
        fields = request.take(session=int, group=int, trainer=int, step=int, part=int, train=bool)
        request.only(2)
        if not 0 <= fields["part"] < MOST_PART:
            raise malformed(f"a lookup is part {fields['part']} of its step; it must be one of 0 … {MOST_PART - 1}")
        asked = self.rows.asked(request)
        waiting = Waiting(request, done, owner, *self._when(fields), fields["part"], asked)
        if not fields["train"]:
            return self._answer(waiting, train=False)
        if self.steps.may_look(waiting.step):
            return self._look(waiting)
        self._keep_lookup(waiting)

    def _when(self, fields: dict[str, Any]) -> tuple[int, int]:
        trainer, step = fields["trainer"], fields["step"]
        if not 0 <= trainer < self.terms.trainers or not 0 <= step < MOST_STEP:
            raise malformed(f"a message is of trainer {trainer}, step {step}; there are {self.terms.trainers} trainers")
        return trainer, step

    def _keep_lookup(self, waiting: Waiting) -> None:
        if sum(each.trainer == waiting.trainer for each in self.lookups) >= self.steps.most_waiting:
            raise self._too_many("lookups", waiting)
        self.lookups.append(waiting)

    def _too_many(self, what: str, waiting: Waiting) -> Refusal:
        return Refusal(
            "busy",
            f"trainer {waiting.trainer} has {self.steps.most_waiting} {what} waiting, that of step {waiting.step} is "
            f"one too many for a staleness of {self.terms.staleness}; wait for answers before sending more",
        )

    def _look(self, waiting: Waiting) -> None:
        first = self.steps.look(waiting.trainer, waiting.step, waiting.part)
        if first:
            self._clock(waiting.step)
        self._answer(waiting, train=first)

    def _answer(self, waiting: Waiting, train: bool) -> None:
        assert waiting.asked is not None
        number = waiting.step * MOST_PART + waiting.part
        vectors, found = self.rows.lookup(waiting.asked, train, Tag(LOOKUPS + waiting.trainer, self.session, number))
        if train:
            self._found.append((waiting.trainer, waiting.step, found))
        waiting.done(waiting.request.answer({}, [on_wire(vectors, self.terms.wire)]))

    def _clock(self, step: int) -> None:
        """The clock of every table is at least that of this step."""
        wanted = [max(now, base + step) for now, base in zip(self.rows.clocks, self.base.values(), strict=True)]
        self.rows.set_clocks(wanted)

    # -- pushes -------------------------------------------------------------------------------------------

    def push(self, request: Message, done: Done, owner: object) -> None:
        """Apply a push once: now, or when those before it are applied; then answer."""
        trainer, step = self._when(request.take(session=int, group=int, trainer=int, step=int))
        if self.steps.turn(trainer, step) is Turn.AGAIN:
            return done(request.answer({"again": True}))
        gradients = self._where(trainer, step, self._gradients(request))
        kept = [key for key in self.pushes if key[0] == trainer]
        waiting = Waiting(request, done, owner, trainer, step, gradients=gradients)
        if len(kept) >= self.steps.most_waiting and (trainer, step) not in kept:
            raise self._too_many("pushes", waiting)
        self.pushes[trainer, step] = waiting  # in the place of one that was sent before, on a connection that broke
        self._apply_due()

    def _gradients(self, request: Message) -> Gradients:
        request.only(4)
        asked = self.rows.asked(request)
        floats = int(asked.floats(self.rows.dims).sum())
        vectors = received(request.array(2, WIRE[self.terms.gradient_wire], floats), self.terms.gradient_wire)
        numbers = request.array(3, "<f8", len(asked.tables), NUMBERS)
        if np.isnan(numbers).any() or (numbers[:, 12] < 0).any() or (numbers[:, 12] > 2**53).any():
            raise malformed("the numbers of a step are not numbers")
        for table in asked.tables.tolist():
            if self.rows.rows[table].rule is None:
                name = self.rows.rows[table].name
                raise Refusal("value", f"table {name!r} has no optimizer on this server; attach its rule first")
        return Gradients(asked, vectors, numbers)

    def _where(self, trainer: int, step: int, given: Gradients) -> Gradients:
        """The same, with the places where the lookup of the step found their rows, if it was of the same ids."""
        for place, (who, when, found) in enumerate(self._found):
            if (who, when) == (trainer, step) and found.same(given.asked):
                del self._found[place]
                return given._replace(found=found)
        return given

    def _apply_due(self) -> None:
        while due := self.steps.due(set(self.pushes)):
            parts = [self.pushes.pop(key) for key in due]
            try:
                result = self._apply(parts)
            except Exception as error:  # such as a full disk: all who are concerned are told, and none is applied
                return _tell(parts, failed("the update", error))
            self.steps.applied(due)
            for part in parts:
                part.done(part.request.answer({"again": False}, [result]))
            self._release()

    def _apply(self, parts: list[Waiting]) -> np.ndarray:
        first = parts[0]
        gradients = [part.gradients for part in parts if part.gradients is not None]
        before = self.rows.clocks
        tag = Tag(self._source(first.trainer), self.session, first.step)
        result = self.rows.update(gradients, tag, partly=first.step <= self._partly)
        after = first.step + (self.terms.staleness == 0)
        # An update moves clocks by one, which is too much where each push is one.
        self.rows.set_clocks([max(at, base + after) for at, base in zip(before, self.base.values(), strict=True)])
        return result

    def _release(self) -> None:
        """Answer the lookups whose turn has come."""
        ready = [each for each in self.lookups if self.steps.may_look(each.step)]
        self.lookups = [each for each in self.lookups if not self.steps.may_look(each.step)]
        for each in ready:
            try:
                self._look(each)
            except Refusal as refusal:
                _tell([each], refusal)
            except Exception as error:
                _tell([each], failed("the lookup", error))

    # -- those who wait -----------------------------------------------------------------------------------

    def forget(self, owner: object) -> None:
        """The connection is gone: what it sent and was not done will be sent again."""
        self.lookups = [each for each in self.lookups if each.owner is not owner]
        self.pushes = {key: each for key, each in self.pushes.items() if each.owner is not owner}

    def waiting(self) -> list[Waiting]:
        """All requests that wait for their turn."""
        return [*self.lookups, *self.pushes.values()]

    def refuse_all(self, refusal: Refusal) -> None:
        """Nobody waits any longer."""
        _tell(self.waiting(), refusal)
        self.lookups, self.pushes = [], {}


def _tell(those: Sequence[Waiting], refusal: Refusal) -> None:
    for each in those:
        each.done(each.request.error(refusal))
