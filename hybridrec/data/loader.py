"""The engine behind a `Dataset` iterator: threads that decode ahead, pack in order, and stay under a memory ceiling.

Windows come lazily from the plan. Each window is some pieces (spans inside one chunk); each row group is read front to
back by one thread at a time. A window whose pieces are all decoded can be packed into the batches that overlap it, and
is let go after the last of them. Here are the threads and their lock; what there is to do is in the schedule. The order
of rows was decided before.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from hybridrec.data.assembly import Cut, Piece
from hybridrec.data.decode import Decoder
from hybridrec.data.effort import Effort, give_way
from hybridrec.data.open_groups import OpenGroups, Places
from hybridrec.data.reading import Plan
from hybridrec.data.schedule import Schedule
from hybridrec.data.shuffle import Window
from hybridrec.data.source import BadFile
from hybridrec.types import Batch

STREAM_PATIENCE = 1.0  # seconds that close() waits for a thread inside a user's iterator


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
        self._source, self._decoder, self._effort = source, decoder, effort
        self._walk = iter(walk)
        self._planner: threading.Thread | None = None  # who waits for the plan
        self._error: BaseException | None = None  # of the plan itself: raised after the batches planned before it
        self._crashed = False
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._after: Loader | None = None
        lock = threading.RLock()
        self._turn, self._made = threading.Condition(lock), threading.Condition(lock)  # for workers, for the consumer
        self._schedule = Schedule(
            OpenGroups(source, decoder, plan),
            plan,
            effort,
            page_locked=decoder.device is not None,
            before=None if before is None else before._schedule,
        )
        _live.add(self)
        if before is None:
            self.begin()
        else:
            before._after = self

    @property
    def unbegun(self) -> bool:
        """Whether its threads have not been started yet, and may be."""
        return not self._threads and not self._schedule.closed

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
            if not self._schedule.wanted:
                self._schedule.wanted = True
                self._turn.notify()  # the epoch before no longer goes first
            while True:
                if (batch := self._schedule.take()) is not None:
                    self._turn.notify()
                    return batch
                ended = self._schedule.ended
                if self._error is not None and (ended or self._crashed):
                    raise self._error
                if self._schedule.closed or ended:
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
            self._schedule.closed = True
            self._wake_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            while thread.is_alive() and self._planner is not thread:
                thread.join(0.05)
            thread.join(STREAM_PATIENCE)
        with self._turn:
            self._schedule.clear()
        after, self._after = self._after, None
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
                give_way()
            while (job := self._next_job()) is not None:
                job()
        except BaseException as error:  # a defect of ours: the consumer must know, not wait
            with self._turn:
                self._error, self._crashed = error, True
                self._wake_all()

    def _next_job(self) -> Callable[[], None] | None:
        schedule = self._schedule
        with self._turn:
            while not schedule.closed and not self._crashed:
                self._plan_ahead()
                if schedule.closed:  # meanwhile: the plan lets go of the lock
                    break
                if (cut := schedule.next_cut()) is not None:
                    self._pass_on()
                    return partial(self._pack, cut)
                if (piece := schedule.next_piece()) is not None:
                    self._pass_on()
                    return partial(self._decode, piece)
                if schedule.all_begun and (after := self._after) is not None and after.unbegun:
                    return after.begin
                if schedule.all_packed:
                    self._turn.notify_all()  # all can go: close() has nobody to wait for
                    return None
                self._turn.wait()
        return None

    def _pass_on(self) -> None:
        """Wake another thread if there is another job."""
        if self._schedule.has_job:
            self._turn.notify()

    def _plan_ahead(self) -> None:
        """Take windows from the plan, as many as are wanted."""
        while self._planner is None and self._schedule.wants_window:
            step = self._next_window()
            if self._schedule.closed:
                return
            if step is None:
                self._schedule.end(whole=self._error is None)
                self._made.notify_all()
                return
            self._schedule.add(*step)
            self._turn.notify()  # others may have gone to sleep for want of work

    def _next_window(self) -> tuple[Window, int] | None:
        """The plan's next window. A stream may keep us waiting: finished batches must still get out meanwhile."""
        self._planner = threading.current_thread()
        self._turn.release()
        try:
            return next(self._walk, None)
        except Exception as error:
            self._error = error
            return None
        finally:
            self._turn.acquire()
            self._planner = None

    def _decode(self, piece: Piece) -> None:
        try:
            piece.data = self._schedule.read(piece)
        except BadFile as bad:
            if self._effort.on_bad_file != "skip":
                piece.window.error = bad
            else:
                with self._turn:
                    self.lost[bad.file] = self.lost.get(bad.file, 0) + piece.span.rows
        except Exception as error:
            error.add_note(f"while reading {self._source.describe(piece.span.group)}")
            piece.window.error = error
        with self._turn:
            self._schedule.decoded(piece)

    def _pack(self, cut: Cut) -> None:
        try:
            made: Batch | BaseException = self._batch(cut)
        except Exception as error:
            made = error
        with self._turn:
            self._schedule.packed(cut, made)
            if cut.number == self._schedule.taken:
                self._made.notify_all()

    def _batch(self, cut: Cut) -> Batch:
        pieces = cut.pieces()

        def where(chunk: int, row: int) -> str:
            return f"{self._source.describe(pieces[chunk].span.group)}, row {pieces[chunk].chunk_start + row}"

        return self._decoder.pack([piece.data for piece in pieces if piece.data], cut.rows(), where)


_live: weakref.WeakSet[Loader] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for loader in list(_live):
        loader.close()
