"""The engine behind a `Dataset` iterator: threads that decode ahead, pack in order, and stay under a memory ceiling.

Windows come lazily from the plan. Each window is some pieces (spans inside one chunk); each row group is read front to
back by one thread at a time. A window whose pieces are all decoded can be packed into the batches that overlap it, and
is let go after the last of them. Every choice made here concerns timing alone: the order of rows was decided before.
"""

from __future__ import annotations

import atexit
import heapq
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hybridrec.data.decode import Chunk, Decoder, Rows
from hybridrec.data.partition import Span, slice_of_batch
from hybridrec.data.shuffle import Borders, Window
from hybridrec.data.source import BadFile, Source
from hybridrec.types import Batch

STREAM_PATIENCE = 1.0  # seconds that close() waits for a thread inside a user's iterator


@dataclass(frozen=True)
class Cuts:
    """How a rank's rows become batches. `world` > 1 here means that ranks share each batch of `batch_size` rows."""

    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class Effort:
    """How hard the loader works: threads that decode, batches kept ready, and bytes it may hold at once."""

    threads: int
    prefetch: int
    memory: int
    on_bad_file: str = "error"


@dataclass(eq=False)
class _Piece:
    span: Span
    chunk_number: int
    window: _Reading
    data: Chunk | None = None


@dataclass(eq=False)
class _Reading:
    """A window on its way: decoded piece by piece, then packed from."""

    number: int
    window: Window
    done: int  # rows of it that an earlier run has delivered
    pieces: list[_Piece] = field(default_factory=list)
    undecoded: int = 0
    unpacked: int = 0  # batches that still need it
    waiting: list[_Cut] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    order: tuple[np.ndarray, np.ndarray] | None = None
    error: BaseException | None = None


@dataclass(eq=False)
class _Cut:
    """One batch on its way: stretches of windows, packed when all of those are decoded."""

    number: int
    parts: list[tuple[_Reading, int, int]]
    undecoded: int = 0


@dataclass(eq=False)
class _Stream:
    """One open row group."""

    chunks: Iterator[Any]
    next_chunk: int
    cache: Any
    queue: deque[_Piece] = field(default_factory=deque)
    busy: bool = False


class Loader:
    """Delivers the batches of one epoch, in order, from worker threads. `close()` may be called at any time."""

    def __init__(
        self, source: Source, decoder: Decoder, walk: Iterable[tuple[Window, int]], plan: Plan, effort: Effort
    ) -> None:
        self.lost: dict[str, int] = {}  # file -> rows, under on_bad_file="skip"
        self._source, self._decoder, self._plan, self._effort = source, decoder, plan, effort
        self._walk: Iterator[tuple[Window, int]] | None = iter(walk)
        self._turn = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None  # of the plan itself: raised after the batches planned before it
        self._crashed = False
        self._planning = False
        self._planner: threading.Thread | None = None  # who waits for the plan
        self._process = os.getpid()
        self._readings = 0
        self._open: list[tuple[_Reading, int, int]] = []  # the batch being filled
        self._open_rows = 0
        self._cut = 0  # batches planned
        self._taken = 0  # batches handed out
        self._held = 0  # bytes of decoded pieces and finished batches
        self._planned_rows = self._freed_rows = 0
        self._row_bytes = plan.row_bytes
        self._head = 0  # number of the first window not yet decoded
        self._undecoded: deque[_Reading] = deque()
        self._ready: list[tuple[int, int, _Piece]] = []
        self._packable: list[tuple[int, _Cut]] = []
        self._done: dict[int, Batch | BaseException] = {}
        self._streams: dict[int, _Stream] = {}
        self._ticket = 0
        _live.add(self)
        self._threads = [
            threading.Thread(target=self._work, name=f"hybridrec-loader-{i}", daemon=True) for i in range(effort.threads)
        ]
        for thread in self._threads:
            thread.start()

    # -- the consumer's side ------------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The next batch, or None at the end of the epoch."""
        with self._turn:
            while True:
                made = self._done.pop(self._taken, None)
                if isinstance(made, BaseException):
                    raise made
                if made is not None:
                    self._taken += 1
                    self._held -= _bytes(made)
                    self._turn.notify_all()
                    return made
                ended = self._walk is None and self._taken == self._cut
                if self._error is not None and (ended or self._crashed):
                    raise self._error
                if self._closed or ended:
                    return None
                self._turn.wait()

    def close(self) -> None:
        """Stop the workers and wait for them; what was decoded ahead is dropped.

        Not waited for: a thread inside a stream that keeps it (it ends with the next element), and, when the garbage
        collector calls this in one of the workers, the others, who may need what that one holds.
        """
        if os.getpid() != self._process:
            return  # a forked child has none of the threads, and perhaps their lock
        with self._turn:
            self._closed = True
            self._turn.notify_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            while thread.is_alive() and self._planner is not thread:
                thread.join(0.05)
            thread.join(STREAM_PATIENCE)
        with self._turn:
            self._streams.clear()
            self._done.clear()
            self._ready.clear()
            self._packable.clear()
            self._undecoded.clear()
            self._open.clear()
        _live.discard(self)

    # -- the workers' side --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                job()
        except BaseException as error:  # a defect of ours: the consumer must know, not wait
            with self._turn:
                self._error, self._crashed = error, True
                self._turn.notify_all()

    def _next_job(self) -> Callable[[], None] | None:
        with self._turn:
            while not self._closed and not self._crashed:
                self._plan_ahead()
                if self._packable and self._may_pack(self._packable[0][0]):
                    _, cut = heapq.heappop(self._packable)
                    return lambda: self._pack(cut)
                if self._ready and self._may_decode(self._ready[0][2]):
                    piece = heapq.heappop(self._ready)[2]
                    self._streams[piece.span.group].busy = True
                    size = int(piece.span.rows * self._row_bytes)
                    self._held += size
                    return lambda: self._decode(piece, size)
                self._turn.wait()
        return None

    def _may_pack(self, number: int) -> bool:
        """Soon wanted; or else decoded just now, and packed best while it is in the cache."""
        ahead = number - self._taken
        if ahead < self._effort.prefetch:
            return True
        return ahead * self._plan.cuts.batch_size < self._plan.ahead_rows and self._held < self._effort.memory

    def _may_decode(self, piece: _Piece) -> bool:
        """Within the ceiling, or needed before anything else can leave."""
        return piece.window.number <= self._head or self._held < self._effort.memory

    def _plan_ahead(self) -> None:
        """Take windows from the plan until the ceiling is planned for, or at least one batch is under way."""
        while (
            not self._planning
            and self._walk is not None
            and (
                self._planned_rows - self._freed_rows < self._plan.ahead_rows
                or self._cut == self._taken + len(self._done)
            )
        ):
            step = self._next_window(self._walk)
            if self._closed:
                return
            if step is None:
                self._walk = None
                if self._open_rows and not self._plan.cuts.drop_last and self._error is None:
                    self._close_cut()
                self._let_go_of_open()
                self._turn.notify_all()
                return
            self._add_window(*step)

    def _next_window(self, walk: Iterator[tuple[Window, int]]) -> tuple[Window, int] | None:
        """The plan's next window. A stream may keep us waiting: finished batches must still get out meanwhile."""
        self._planning, self._planner = True, threading.current_thread()
        self._turn.release()
        try:
            return next(walk, None)
        except Exception as error:
            self._error = error
            return None
        finally:
            self._turn.acquire()
            self._planning, self._planner = False, None

    def _add_window(self, window: Window, done: int) -> None:
        if window.rows == done:
            return
        reading = _Reading(self._readings, window, done)
        self._readings += 1
        self._planned_rows += window.rows
        self._undecoded.append(reading)
        for span in window.spans:
            chunk = int(np.searchsorted(self._plan.borders(span.group), span.start, side="right")) - 1
            piece = _Piece(span, chunk, reading)
            reading.pieces.append(piece)
            reading.undecoded += 1
            stream = self._streams.get(span.group)
            if stream is None:
                stream = self._streams[span.group] = _Stream(iter(()), -1, None)
            stream.queue.append(piece)
            if not stream.busy and len(stream.queue) == 1:
                self._push(piece)
        at = done
        while at < window.rows:
            stop = min(window.rows, at + self._plan.cuts.batch_size - self._open_rows)
            self._open.append((reading, at, stop))
            reading.unpacked += 1
            self._open_rows += stop - at
            at = stop
            if self._open_rows == self._plan.cuts.batch_size:
                self._close_cut()

    def _close_cut(self) -> None:
        cuts = self._plan.cuts
        first, last = slice_of_batch(self._open_rows, cuts.rank, cuts.world)
        parts, at = [], 0
        for reading, start, stop in self._open:  # keep this rank's slice; the rest is another's
            low, high = max(start, start + first - at), min(stop, start + last - at)
            at += stop - start
            if low < high:
                parts.append((reading, low, high))
            else:
                self._release(reading)
        cut = _Cut(self._cut, parts)
        self._cut += 1
        self._open, self._open_rows = [], 0
        for reading, _, _ in parts:
            if reading.undecoded:
                cut.undecoded += 1
                reading.waiting.append(cut)
        if not cut.undecoded:
            heapq.heappush(self._packable, (cut.number, cut))

    def _let_go_of_open(self) -> None:
        for reading, _, _ in self._open:
            self._release(reading)
        self._open, self._open_rows = [], 0

    def _push(self, piece: _Piece) -> None:
        self._ticket += 1
        heapq.heappush(self._ready, (piece.window.number, self._ticket, piece))

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _decode(self, piece: _Piece, promised: int) -> None:
        group, reading = piece.span.group, piece.window
        try:
            piece.data = self._read(piece)
        except BadFile as bad:
            if self._effort.on_bad_file != "skip":
                reading.error = bad
            else:
                with self._turn:
                    self.lost[bad.file] = self.lost.get(bad.file, 0) + piece.span.rows
        except Exception as error:
            error.add_note(f"while reading {self._source.describe(group)}")
            reading.error = error
        with self._turn:
            stream = self._streams[group]
            stream.busy = False
            stream.queue.popleft()
            size = piece.data.bytes if piece.data is not None else 0
            self._held += size - promised
            if piece.data is not None and piece.data.rows:
                self._row_bytes = 0.9 * self._row_bytes + 0.1 * size / piece.data.rows
            if piece.data is None:
                stream.next_chunk = -1  # whatever state it was left in, the next piece opens it anew
            if stream.queue:
                self._push(stream.queue[0])
            elif piece.span.stop >= self._plan.last_row(group):
                del self._streams[group]
            reading.undecoded -= 1
            if reading.undecoded == 0:
                self._window_decoded(reading)
            self._turn.notify_all()

    def _window_decoded(self, reading: _Reading) -> None:
        for cut in reading.waiting:
            cut.undecoded -= 1
            if cut.undecoded == 0:
                heapq.heappush(self._packable, (cut.number, cut))
        reading.waiting.clear()
        while self._undecoded and self._undecoded[0].undecoded == 0:
            self._undecoded.popleft()
        self._head = self._undecoded[0].number if self._undecoded else self._readings
        if reading.unpacked == 0:
            self._free(reading)

    def _read(self, piece: _Piece) -> Chunk:
        """The piece's chunk; only one thread at a time reads a row group."""
        group = piece.span.group
        stream = self._streams[group]
        if stream.next_chunk < 0 or stream.next_chunk > piece.chunk_number:
            stream.chunks = self._plan.open(group)
            stream.next_chunk, stream.cache = 0, self._decoder.cache()
        while True:
            batch = next(stream.chunks, None)
            if batch is None:
                place = self._source.groups[group]
                reason = "it ended before its last row; was it changed while being read?"
                raise BadFile(self._source.files[place.file], reason, place.index)
            stream.next_chunk += 1
            if stream.next_chunk > piece.chunk_number:
                return self._decoder.chunk(batch, stream.cache, self._plan.absent(group))
            if self._closed:
                raise InterruptedError("the loader was closed")

    # -- packing ------------------------------------------------------------------------------------------------------

    def _pack(self, cut: _Cut) -> None:
        try:
            made: Batch | BaseException = self._batch(cut)
        except Exception as error:
            made = error
        with self._turn:
            self._done[cut.number] = made
            if isinstance(made, Batch):
                self._held += _bytes(made)
            for reading, _, _ in cut.parts:
                self._release(reading)
            self._turn.notify_all()

    def _release(self, reading: _Reading) -> None:
        """One batch fewer needs this window."""
        reading.unpacked -= 1
        if reading.unpacked == 0 and reading.undecoded == 0:
            self._free(reading)

    def _free(self, reading: _Reading) -> None:
        self._held -= sum(piece.data.bytes for piece in reading.pieces if piece.data is not None)
        self._freed_rows += reading.window.rows
        reading.pieces, reading.order = [], None

    def _batch(self, cut: _Cut) -> Batch:
        parts = [(reading, start, stop) for reading, start, stop in cut.parts if start < stop]
        for reading, _, _ in parts:
            if reading.error is not None:
                raise reading.error
        pieces = [piece for reading, _, _ in parts for piece in reading.pieces]
        chunks = [piece.data for piece in pieces if piece.data is not None]
        names = [piece for piece in pieces if piece.data is not None]

        def where(chunk: int, row: int) -> str:
            group = names[chunk].span.group
            row += int(self._plan.borders(group)[names[chunk].chunk_number])
            return f"{self._source.describe(group)}, row {row}"

        if all(reading.window.key is None and reading.window.spans[0].keep is None for reading, _, _ in parts):
            return self._decoder.pack(chunks, self._runs(parts), where)
        return self._decoder.pack(chunks, self._gathered(parts), where)

    def _first_row(self, piece: _Piece) -> int:
        return piece.span.start - int(self._plan.borders(piece.span.group)[piece.chunk_number])

    def _runs(self, parts: list[tuple[_Reading, int, int]]) -> Rows:
        """Windows read in order hold one piece each: a stretch of one is a run of its chunk."""
        runs: list[list[int]] = []
        for reading, start, stop in parts:
            (piece,) = reading.pieces
            if piece.data is not None:
                first = self._first_row(piece)
                runs.append([len(runs), first + start, first + stop])
        return Rows(sum(stop - start for _, start, stop in runs), runs=runs)

    def _gathered(self, parts: list[tuple[_Reading, int, int]]) -> Rows:
        chunk_of, row_of, before = [], [], 0
        for reading, start, stop in parts:
            pieces, rows = self._order(reading)
            place = np.full(len(reading.pieces) + 1, -1, np.int32)  # piece -> chunk of this batch, -1: its file was bad
            present = [i for i, piece in enumerate(reading.pieces) if piece.data is not None]
            place[present] = np.arange(before, before + len(present))
            before += len(present)
            chunk_of.append(place[pieces[start:stop]])
            row_of.append(rows[start:stop])
        chunks, rows = np.concatenate(chunk_of), np.concatenate(row_of)
        if (chunks < 0).any():
            kept = chunks >= 0
            chunks, rows = chunks[kept], rows[kept]
        return Rows(len(rows), chunk_of=np.ascontiguousarray(chunks), row_of=np.ascontiguousarray(rows))

    def _order(self, reading: _Reading) -> tuple[np.ndarray, np.ndarray]:
        """For each row of the window in reading order: its piece, and its row in that piece's chunk (int32)."""
        with reading.lock:
            if reading.order is None:
                pieces = [np.full(piece.span.rows, i, np.int32) for i, piece in enumerate(reading.pieces)]
                rows = [
                    (piece.span.indices() - piece.span.start + self._first_row(piece)).astype(np.int32)
                    for piece in reading.pieces
                ]
                both = np.concatenate(pieces), np.concatenate(rows)
                if reading.window.key is not None:
                    order = reading.window.order()
                    both = both[0][order], both[1][order]
                reading.order = both
            return reading.order


@dataclass(frozen=True)
class Plan:
    """What the loader must know beside the windows: how to open a group, its chunk borders, its last row needed."""

    open: Callable[[int], Iterator[Any]]
    borders: Borders
    last_row: Callable[[int], int]
    absent: Callable[[int], frozenset[str]]
    cuts: Cuts
    row_bytes: float
    ahead_rows: int  # how far the windows planned may run ahead of those let go


def _bytes(batch: Batch) -> int:
    return 0 if batch.arena is None else batch.arena.numel()


class BatchIterator(Iterator[Batch]):
    """Hands out a loader's batches and closes it at the end, on `close()`, and when it is garbage collected.

    `steps` is how many batches all ranks agree on: fewer than the loader has (they stop together), or more (the last
    ones are empty). None: as many as the loader has. Batches that a bad file left empty are passed over unless ranks
    must keep step.
    """

    def __init__(
        self, loader: Loader, empty: Callable[[], Batch], steps: int | None, lockstep: bool, progress: Progress
    ) -> None:
        self._loader, self._empty, self._steps = loader, empty, steps
        self._lockstep, self._progress = lockstep, progress
        self._over = False
        self._finalize = weakref.finalize(self, loader.close)

    def __next__(self) -> Batch:
        while self._steps != 0 and not self._over:
            try:
                batch = self._loader.take() if self._finalize.alive else None
            except BaseException:
                self.close()
                raise
            if batch is None:
                self._finalize()
                if self._steps is None:
                    break
                batch = self._empty()
            self._steps = None if self._steps is None else self._steps - 1
            self._progress.step()
            if len(batch) or self._lockstep:
                return batch
        if not self._over:
            self.close()
            self._progress.end(self._loader.lost)
        raise StopIteration

    def close(self) -> None:
        """Stop the threads; the iterator is over, and the dataset stands where it is."""
        self._over = True
        self._finalize()


class Progress(Protocol):
    """Who wants to know how far an iterator has come."""

    def step(self) -> None: ...
    def end(self, lost: dict[str, int]) -> None: ...


_live: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        loader.close()
