"""Captures of CUDA graphs, and their replays, which do the captured work anew.

A replay is work of the stream that it is launched on: it begins behind all that stream was given, and what is launched
there later is behind all of it. Streams that took part are branches within it, and memory that was made stays its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.ordering.memory import Block
from tests.ordering.streams import Stream

if TYPE_CHECKING:
    from tests.ordering.card import Card


class Capture:
    """A graph: each replay finds its memory where the last one left it."""

    def __init__(self, card: Card, work: Callable[[], None]) -> None:
        self._card, self._work = card, work
        self._stream = Stream(card, card.device, "a replay")
        self._numbers: dict[Stream, int] = {}
        self.branches: dict[Stream, int] = {}
        self._before: list[Block] = []  # the memory of the replay before, in the order in which it was made
        self._made: list[Block] = []

    def join(self, stream: Stream) -> None:
        """A stream takes part from now on."""
        if stream not in self._numbers:
            self._numbers[stream] = self._card.clocks.add(f"{stream.name}, within a replay")
        self.branches[stream] = self._numbers[stream]

    def made(self, block: Block) -> None:
        """The same memory as in the replay before."""
        block.pool = self
        at = len(self._made)
        if at < len(self._before) and self._before[at].size == block.size:
            block.history = self._before[at].history
        self._made.append(block)

    def record(self) -> None:
        """The capture itself, which does nothing: what it makes is what nobody sees."""
        self._card.synchronize()
        with self._card.quiet():
            self._run()

    def replay(self) -> None:
        here, clocks = self._card.current, self._card.clocks
        self._before, self._made = self._made, []
        begin = here.record_event().moment
        assert begin is not None
        clocks.follow(self._stream._who, begin)
        self._run()
        clocks.follow(here.who, clocks.seen(self._stream._who))
        for block in self._made:
            block.lasts = True  # as long as the graph is there

    def _run(self) -> None:
        card, clocks = self._card, self._card.clocks
        assert card.capture is None, "a capture is no part of another"
        self.branches = {self._stream: self._stream._who}
        card.here.capture, before = self, card.here.stream
        card.here.stream = self._stream
        try:
            self._work()
            for stream, who in self.branches.items():
                if clocks.of(who)[who] > clocks.of(self._stream._who)[who]:
                    card.wrong(f"a capture ends without {stream.name}, which took part in it")
        finally:
            card.here.capture, card.here.stream = None, before
            self.branches = {}
