"""The engine behind a `Dataset` iterator: threads that decode ahead, pack in order, and stay under a memory ceiling.

Windows come lazily from the plan. Each window is some pieces (spans inside one chunk); each row group is read front to
back by one thread at a time. A window whose pieces are all decoded can be packed into the batches that overlap it, and
is let go after the last of them. Every choice made here concerns timing alone: the order of rows was decided before.
"""

from __future__ import annotations

import atexit
import heapq
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from hybridrec.data.assembly import Cut, Decoding, Part, Piece
from hybridrec.data.decode import Chunk, Decoder
from hybridrec.data.partition import slice_of_batch
from hybridrec.data.shuffle import Borders, Window
from hybridrec.data.source import BadFile, Group
from hybridrec.types import Batch

MEMORY = 640 << 20  # bytes that a loader may hold unless told otherwise
NICE = 10  # of threads that decode for a GPU
LOCKED = 8  # batches ahead in page-locked memory: to lock that of one takes as long as many steps, and delays them
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

    def __post_init__(self) -> None:
        for name in ("threads", "prefetch", "memory"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: at least 1, a whole number")

    def beside_a_gpu(self) -> Effort:
        """The same, but all cores less two: the threads that start kernels and copies need one each."""
        cores = os.cpu_count() or 1
        return self if self.threads != cores else replace(self, threads=max(1, cores // 2, cores - 2))


@dataclass(frozen=True)
class Plan:
    """What the loader must know beside the windows: how to open a group, its chunk borders, its last row needed."""

    open: Callable[[int, bool], Iterator[Any]]  # a group; whether to put all threads on its columns
    borders: Borders
    last_row: Callable[[int], int]
    absent: Callable[[int], frozenset[str]]
    cuts: Cuts
    row_bytes: float
    ahead_rows: int  # how far the windows planned may run ahead of those let go


@dataclass(eq=False)
class _Stream:
    """One open row group."""

    chunks: Iterator[Any]
    next_chunk: int
    cache: Any
    queue: deque[Piece] = field(default_factory=deque)
    busy: bool = False


class Places(Protocol):
    """What the loader asks of a source: the names of its groups, for errors."""

    @property
    def files(self) -> Sequence[str]: ...
    @property
    def groups(self) -> Sequence[Group]: ...
    def describe(self, group: int) -> str: ...


class Loader:
    """Delivers the batches of one epoch, in order, from worker threads. `close()` may be called at any time.

    With `before`, the loader of the epoch before, work begins once that one leaves threads idle, and both together stay
    under the ceiling.
    """

    def __init__(
        self,
        source: Places,
        decoder: Decoder,
        walk: Iterable[tuple[Window, int]],
        plan: Plan,
        effort: Effort,
        before: Loader | None = None,
    ) -> None:
        self.lost: dict[str, int] = {}  # file -> rows, under on_bad_file="skip"
        self._source, self._decoder, self._plan, self._effort = source, decoder, plan, effort
        self._walk: Iterator[tuple[Window, int]] | None = iter(walk)
        lock = threading.RLock()
        self._turn, self._made = threading.Condition(lock), threading.Condition(lock)  # for workers, for the consumer
        self._closed = False
        self._error: BaseException | None = None  # of the plan itself: raised after the batches planned before it
        self._crashed = False
        self._planning = False
        self._planner: threading.Thread | None = None  # who waits for the plan
        self._process = os.getpid()
        self._readings = 0
        self._open: list[Part] = []  # the batch being filled
        self._open_rows = 0
        self._cut = 0  # batches planned
        self._taken = 0  # batches handed out
        self._wanted = False  # whether somebody takes them
        self._held = 0  # bytes of decoded pieces and finished batches
        self._planned_rows = self._freed_rows = 0
        self._row_bytes = plan.row_bytes
        self._head = 0  # number of the first window not yet decoded
        self._undecoded: deque[Decoding] = deque()
        self._ready: list[tuple[int, int, Piece]] = []
        self._packable: list[tuple[int, Cut]] = []
        self._done: dict[int, Batch | BaseException] = {}
        self._streams: dict[int, _Stream] = {}
        self._ticket = 0
        self._threads: list[threading.Thread] = []
        self._before = before
        self._after: Loader | None = None
        _live.add(self)
        if before is None:
            self.begin()
        else:
            before._after = self

    @property
    def unbegun(self) -> bool:
        """Whether its threads have not been started yet, and may be."""
        return not self._threads and not self._closed

    def begin(self) -> None:
        """Start the threads, unless they are at work."""
        with self._turn:  # nobody begins, and holds the interpreter, before all have started
            if not self.unbegun:
                return
            self._threads = [
                threading.Thread(target=self._work, name=f"hybridrec-loader-{i}", daemon=True)
                for i in range(self._effort.threads)
            ]
            for thread in self._threads:
                thread.start()

    # -- the consumer's side ------------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The next batch, or None at the end of the epoch."""
        self.begin()
        try:
            return self._take()
        finally:
            if (after := self._after) is not None:
                after._wake()  # it may hold as much more

    def _take(self) -> Batch | None:
        with self._turn:
            if not self._wanted:
                self._wanted = True
                self._turn.notify()  # the epoch before no longer goes first
            while True:
                made = self._done.pop(self._taken, None)
                if isinstance(made, BaseException):
                    raise made
                if made is not None:
                    self._taken += 1
                    self._held -= _bytes(made)
                    self._turn.notify()
                    return made
                ended = self._walk is None and self._taken == self._cut
                if self._error is not None and (ended or self._crashed):
                    raise self._error
                if self._closed or ended:
                    return None
                self._made.wait()

    def close(self) -> None:
        """Stop the workers and wait for them; what was decoded ahead is dropped.

        Not waited for: a thread inside a stream that keeps it (it ends with the next element), and, when the garbage
        collector calls this in one of the workers, the others, who may need what that one holds.
        """
        if os.getpid() != self._process:
            return  # a forked child has none of the threads, and perhaps their lock
        with self._turn:
            self._closed = True
            self._wake_all()
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
            self._held = 0
        after, self._before, self._after = self._after, None, None
        if after is not None:
            after._wake()
        _live.discard(self)

    def _wake(self) -> None:
        with self._turn:
            self._turn.notify()

    def _wake_all(self) -> None:
        self._turn.notify_all()
        self._made.notify_all()

    # -- the workers' side --------------------------------------------------------------------------------------------
    #
    # Threads that wake up for nothing hold the interpreter while the model needs it. So whoever takes a job wakes one
    # other if there is another job; who ends one looks for the next himself.

    def _work(self) -> None:
        try:
            if self._decoder.device is not None:
                _give_way()
            while (job := self._next_job()) is not None:
                job()
        except BaseException as error:  # a defect of ours: the consumer must know, not wait
            with self._turn:
                self._error, self._crashed = error, True
                self._wake_all()

    def _next_job(self) -> Callable[[], None] | None:
        with self._turn:
            while not self._closed and not self._crashed:
                self._plan_ahead()
                if self._closed:  # meanwhile: the plan lets go of the lock
                    break
                if self._may_pack():
                    _, cut = heapq.heappop(self._packable)
                    self._pass_on()
                    return lambda: self._pack(cut)
                if self._may_decode():
                    piece = heapq.heappop(self._ready)[2]
                    self._streams[piece.span.group].busy = True
                    size = int(piece.span.rows * self._row_bytes)
                    self._held += size
                    self._pass_on()
                    return lambda: self._decode(piece, size)
                if self._walk is None and not self._ready:
                    if (after := self._after) is not None and after.unbegun:
                        return after.begin
                    if not self._undecoded and not self._packable:
                        self._turn.notify_all()  # all can go: close() has nobody to wait for
                        return None
                self._turn.wait()
        return None

    def _pass_on(self) -> None:
        """Wake another thread if there is another job."""
        if self._may_pack() or self._may_decode():
            self._turn.notify()

    def _may_pack(self) -> bool:
        """The next batch is soon wanted; or else decoded just now, and packed best while it is in the cache."""
        if not self._packable:
            return False
        ahead = self._packable[0][0] - self._taken
        if self._decoder.device is not None and ahead + self._left_before() >= max(LOCKED, self._effort.prefetch):
            return False
        if ahead < self._effort.prefetch:
            return True
        return ahead * self._plan.cuts.batch_size < self._plan.ahead_rows and self._below_ceiling()

    def _left_before(self) -> int:
        """Batches of the epoch before that are yet to be taken; none where somebody takes those of this one."""
        before = None if self._wanted else self._before
        return 0 if before is None or before._closed else before._cut - before._taken

    def _may_decode(self) -> bool:
        """The next piece is within the ceiling, or needed before anything else can leave."""
        return bool(self._ready) and (self._ready[0][2].window.number <= self._head or self._below_ceiling())

    def _below_ceiling(self) -> bool:
        before = 0 if self._before is None else self._before._held
        return before + self._held < self._effort.memory

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
                self._made.notify_all()
                return
            self._add_window(*step)
            self._turn.notify()  # others may have gone to sleep for want of work

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
        decoding = Decoding(self._readings, window, done)
        self._readings += 1
        self._planned_rows += window.rows
        self._undecoded.append(decoding)
        for span in window.spans:
            borders = self._plan.borders(span.group)
            chunk = int(np.searchsorted(borders, span.start, side="right")) - 1
            piece = Piece(span, chunk, int(borders[chunk]), decoding)
            decoding.pieces.append(piece)
            decoding.undecoded += 1
            stream = self._streams.get(span.group)
            if stream is None:
                stream = self._streams[span.group] = _Stream(iter(()), -1, None)
            stream.queue.append(piece)
            if not stream.busy and len(stream.queue) == 1:
                self._push(piece)
        at = done
        while at < window.rows:
            stop = min(window.rows, at + self._plan.cuts.batch_size - self._open_rows)
            self._open.append((decoding, at, stop))
            decoding.unpacked += 1
            self._open_rows += stop - at
            at = stop
            if self._open_rows == self._plan.cuts.batch_size:
                self._close_cut()

    def _close_cut(self) -> None:
        cuts = self._plan.cuts
        first, last = slice_of_batch(self._open_rows, cuts.rank, cuts.world)
        parts, at = [], 0
        for decoding, start, stop in self._open:  # keep this rank's slice; the rest is another's
            low, high = max(start, start + first - at), min(stop, start + last - at)
            at += stop - start
            if low < high:
                parts.append((decoding, low, high))
            else:
                self._release(decoding)
        cut = Cut(self._cut, parts)
        self._cut += 1
        self._open, self._open_rows = [], 0
        for decoding, _, _ in parts:
            if decoding.undecoded:
                cut.undecoded += 1
                decoding.waiting.append(cut)
        if not cut.undecoded:
            heapq.heappush(self._packable, (cut.number, cut))

    def _let_go_of_open(self) -> None:
        for decoding, _, _ in self._open:
            self._release(decoding)
        self._open, self._open_rows = [], 0

    def _push(self, piece: Piece) -> None:
        self._ticket += 1
        heapq.heappush(self._ready, (piece.window.number, self._ticket, piece))

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _decode(self, piece: Piece, promised: int) -> None:
        group, decoding = piece.span.group, piece.window
        try:
            piece.data = self._read(piece)
        except BadFile as bad:
            if self._effort.on_bad_file != "skip":
                decoding.error = bad
            else:
                with self._turn:
                    self.lost[bad.file] = self.lost.get(bad.file, 0) + piece.span.rows
        except Exception as error:
            error.add_note(f"while reading {self._source.describe(group)}")
            decoding.error = error
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
            decoding.undecoded -= 1
            if decoding.undecoded == 0:
                self._window_decoded(decoding)

    def _window_decoded(self, decoding: Decoding) -> None:
        for cut in decoding.waiting:
            cut.undecoded -= 1
            if cut.undecoded == 0:
                heapq.heappush(self._packable, (cut.number, cut))
        decoding.waiting.clear()
        while self._undecoded and self._undecoded[0].undecoded == 0:
            self._undecoded.popleft()
        self._head = self._undecoded[0].number if self._undecoded else self._readings
        if decoding.unpacked == 0:
            self._free(decoding)

    def _read(self, piece: Piece) -> Chunk:
        """The piece's chunk; only one thread at a time reads a row group."""
        group = piece.span.group
        stream = self._streams[group]
        if stream.next_chunk < 0 or stream.next_chunk > piece.chunk_number:
            stream.chunks = self._plan.open(group, self._last_groups())
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

    def _last_groups(self) -> bool:
        """Whether there are too few groups left to keep all threads busy with one each, and all are wanted.

        Beside a GPU they are where batches are lacking: Arrow's threads do not give way as ours do (`_give_way`).
        """
        few = self._effort.threads > 1 and self._walk is None and len(self._streams) <= self._effort.threads + 1
        return few and (self._decoder.device is None or self._late())

    def _late(self) -> bool:
        """Whether who takes batches has fewer ready than he wants."""
        return (self._before is None or self._before._closed) and len(self._done) < self._effort.prefetch

    # -- packing ------------------------------------------------------------------------------------------------------

    def _pack(self, cut: Cut) -> None:
        try:
            made: Batch | BaseException = self._batch(cut)
        except Exception as error:
            made = error
        with self._turn:
            self._done[cut.number] = made
            if isinstance(made, Batch):
                self._held += _bytes(made)
            for decoding, _, _ in cut.parts:
                self._release(decoding)
            if cut.number == self._taken:
                self._made.notify_all()

    def _release(self, decoding: Decoding) -> None:
        """One batch fewer needs this window."""
        decoding.unpacked -= 1
        if decoding.unpacked == 0 and decoding.undecoded == 0:
            self._free(decoding)

    def _free(self, decoding: Decoding) -> None:
        self._held -= sum(piece.data.bytes for piece in decoding.pieces if piece.data is not None)
        self._freed_rows += decoding.window.rows
        decoding.pieces, decoding.order = [], None

    def _batch(self, cut: Cut) -> Batch:
        pieces = cut.pieces()

        def where(chunk: int, row: int) -> str:
            return f"{self._source.describe(pieces[chunk].span.group)}, row {pieces[chunk].chunk_start + row}"

        return self._decoder.pack([piece.data for piece in pieces if piece.data], cut.rows(), where)


def _give_way() -> None:
    """Let the thread that starts the kernels of a GPU go first, and the one that feeds it: they are late at once."""
    if sys.platform == "linux":  # where threads have priorities of their own
        this = os.PRIO_PROCESS, threading.get_native_id()
        with suppress(OSError):
            os.setpriority(*this, max(NICE, os.getpriority(*this)))


def _bytes(batch: Batch) -> int:
    return 0 if batch.arena is None else batch.arena.numel()


_live: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        loader.close()
