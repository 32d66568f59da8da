"""Memory: which bytes of a card, and of its host's pinned memory, were read and written by whom, and when.

Accesses of one byte of which one writes must be ordered. And memory that is let go is handed out again at once, to
whoever allocates on the stream that it came from: by then all that used it must be over, or known to the allocator by
`record_stream`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.ordering.clocks import Clocks, Vector

CARD, PINNED = "card", "pinned"
READS, WRITES, UPDATES = "read", "written", "updated"  # the last by an atomic operation
Places = NDArray[np.int64]


class Deed(NamedTuple):
    """What reads or writes: who does it, when, and how a report names it."""

    who: int
    time: int
    name: int


class _Last:
    """The last deed at each byte, of one kind."""

    def __init__(self, size: int) -> None:
        self.who = np.zeros(size, dtype=np.int16)
        self.time = np.zeros(size, dtype=np.int64)  # 0 where there was none
        self.name = np.zeros(size, dtype=np.int32)

    def note(self, at: Places | slice, deed: Deed) -> None:
        self.who[at], self.time[at], self.name[at] = deed

    def unordered(self, at: Places | slice, after: Vector) -> Deed | None:
        """One that `after` does not know to be over."""
        who, time = self.who[at], self.time[at]
        found = np.flatnonzero(time > after[who])
        return None if not len(found) else Deed(int(who[found[0]]), int(time[found[0]]), int(self.name[at][found[0]]))


class History:
    """The last write of each byte, and the last read and atomic update of it by each stream or thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: dict[tuple[str, int], _Last] = {}  # of writes, which are ordered, in one

    def note(self, at: Places | slice, deed: Deed, kind: str) -> None:
        key = kind, -1 if kind == WRITES else deed.who
        if key not in self._last:
            self._last[key] = _Last(self._size)
        self._last[key].note(at, deed)

    def unordered(self, at: Places | slice, after: Vector, kind: str) -> Iterator[Deed]:
        """Deeds that conflict with one at these bytes which comes `after` a moment; reads and updates are at peace."""
        for (other, _), last in self._last.items():
            if (other != kind or kind == WRITES) and (found := last.unordered(at, after)) is not None:
                yield found

    def users(self, after: Vector) -> list[Deed]:
        """The last deeds of all that a moment does not know to be over, one of each who."""
        found: dict[int, Deed] = {}
        for last in self._last.values():
            for at in np.flatnonzero(last.time > after[last.who]):
                deed = Deed(int(last.who[at]), int(last.time[at]), int(last.name[at]))
                found[deed.who] = max(deed, found.get(deed.who, deed), key=lambda each: each.time)
        return list(found.values())


@dataclass(eq=False)
class Block:
    """Some memory that was allocated at once."""

    address: int
    size: int
    kind: str
    made_by: int  # the stream it came from
    pool: object = None  # of a graph, if it is memory of one
    lasts: bool = False  # its memory is never handed out anew
    recorded: set[int] = field(default_factory=set)
    copied_by: set[int] = field(default_factory=set)  # streams that copied from or to it, of which the allocator knows
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.size)


class _Free(NamedTuple):
    """Memory that was let go while somebody may have used it."""

    users: list[Deed]


class Memory:
    """All blocks, by their addresses, and what was found wrong with their use."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._starts: list[int] = []
        self._blocks: list[Block] = []
        self._names: list[str] = ["its last owner"]
        self._numbers: dict[str, int] = {}
        self._free: dict[tuple[object, int], list[_Free]] = {}  # by pool and stream
        self.findings: dict[str, None] = {}  # in their order, each once

    def deed(self, who: int, name: str) -> Deed:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return Deed(who, self._clocks.tick(who), self._numbers[name])

    def find(self, address: int) -> Block | None:
        at = bisect_right(self._starts, address) - 1
        return self._blocks[at] if at >= 0 and address < self._starts[at] + self._blocks[at].size else None

    def add(self, block: Block, deed: Deed) -> None:
        """It was allocated: on a card, behind all that the stream was given before."""
        at = bisect_right(self._starts, block.address)
        self._starts.insert(at, block.address)
        self._blocks.insert(at, block)
        if block.kind == CARD:
            self._hand_out(block, deed)
            block.history.note(slice(None), deed, WRITES)

    def _hand_out(self, block: Block, deed: Deed) -> None:
        """It may be any that was let go there."""
        after, key = self._clocks.of(deed.who), (block.pool, block.made_by)
        for free in self._free.pop(key, []):
            for user in free.users:
                if user.time > after[user.who]:
                    self.report("memory is handed out anew", deed, "while it may still be used by", user)

    def remove(self, block: Block, thread: int) -> None:
        """It was let go by a thread of the host."""
        at = bisect_right(self._starts, block.address) - 1
        if at < 0 or self._blocks[at] is not block:
            return
        del self._starts[at], self._blocks[at]
        if block.lasts:
            return
        users = block.history.users(self._clocks.of_threads())
        if block.kind == CARD:
            waited = self._clocks.together(block.recorded)  # who has waited for a stream keeps it, too
            left = [each for each in users if each.who != block.made_by and each.time > waited[each.who]]
            if left:
                self._free.setdefault((block.pool, block.made_by), []).append(_Free(left))
        else:
            for user in users:
                if user.who not in block.copied_by:
                    self.report("pinned memory is let go", Deed(thread, 0, 0), "while it may still be used by", user)

    def access(self, block: Block, at: Places | slice, deed: Deed, kind: str) -> None:
        after = self._clocks.of(deed.who)
        for other in block.history.unordered(at, after, kind):
            self.report(f"{block.kind} memory is {kind}", deed, "with no order between that and", other)
        block.history.note(at, deed, kind)

    def report(self, what: str, deed: Deed, how: str, other: Deed) -> None:
        one, two = (f"{self._names[each.name]} on {self._clocks.names[each.who]}" for each in (deed, other))
        self.findings.setdefault(f"{what} by {one}, {how} {two}")
