"""The row groups that are being read: each front to back, by one thread at a time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hybridrec.data.assembly import Piece
from hybridrec.data.decode import Chunk, Decoder
from hybridrec.data.reading import Plan
from hybridrec.data.source import BadFile, Group


class Places(Protocol):
    """What the loader asks of a source: the names of its groups, for errors."""

    @property
    def files(self) -> Sequence[str]: ...
    @property
    def groups(self) -> Sequence[Group]: ...
    def describe(self, group: int) -> str: ...


@dataclass(eq=False)
class _OpenGroup:
    """One row group: how far it was read, and the pieces of it that are yet to be, or being read."""

    chunks: Iterator[Any] = field(default_factory=lambda: iter(()))
    next_chunk: int = -1  # it must be opened
    cache: Any = None
    pieces: deque[Piece] = field(default_factory=deque)


class OpenGroups:
    """Pieces that wait for their row group, and the groups themselves.

    The pages of a column can only be decoded front to back: of each group, the first of its pieces can be taken, the
    next one when that is done. The lock of the loader guards all but `read`: whoever took a piece has its group to
    himself.
    """

    def __init__(self, source: Places, decoder: Decoder, plan: Plan) -> None:
        self._source, self._decoder, self._plan = source, decoder, plan
        self._open: dict[int, _OpenGroup] = {}
        self._ready: list[tuple[int, int, Piece]] = []  # by window, then by when it became ready
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def first(self) -> Piece | None:
        """The piece that `take` gives: of those that can be read now, one of the earliest window."""
        return self._ready[0][2] if self._ready else None

    def add(self, piece: Piece) -> None:
        group = self._open.setdefault(piece.span.group, _OpenGroup())
        group.pieces.append(piece)
        if len(group.pieces) == 1:
            self._push(piece)

    def take(self) -> Piece:
        return heapq.heappop(self._ready)[2]

    def read(self, piece: Piece, all_threads: bool, closed: Callable[[], bool]) -> Chunk:
        """The chunk of a piece that was taken; `all_threads` says how its group is opened, if it must be."""
        number = piece.span.group
        group = self._open[number]
        if group.next_chunk < 0 or group.next_chunk > piece.chunk_number:
            group.chunks = self._plan.reading.open(number, all_threads)
            group.next_chunk, group.cache = 0, self._decoder.cache()
        while True:
            batch = next(group.chunks, None)
            if batch is None:
                place = self._source.groups[number]
                reason = "it ended before its last row; was it changed while being read?"
                raise BadFile(self._source.files[place.file], reason, place.index)
            group.next_chunk += 1
            if group.next_chunk > piece.chunk_number:
                return self._decoder.chunk(batch, group.cache, self._plan.reading.absent(number))
            if closed():
                raise InterruptedError("the loader was closed")

    def done(self, piece: Piece) -> None:
        """A piece was read, or could not be: the next one of its group can be taken."""
        number = piece.span.group
        group = self._open[number]
        group.pieces.popleft()
        if piece.data is None:
            group.next_chunk = -1  # whatever state it was left in, the next piece opens it anew
        if group.pieces:
            self._push(group.pieces[0])
        elif piece.span.stop >= self._plan.last_row(number):
            del self._open[number]

    def clear(self) -> None:
        self._open.clear()
        self._ready.clear()

    def _push(self, piece: Piece) -> None:
        self._ticket += 1
        heapq.heappush(self._ready, (piece.window.number, self._ticket, piece))
