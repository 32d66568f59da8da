"""What a loader has to do for one epoch, and what of it is worth doing now."""

from __future__ import annotations

from collections import deque

from hybridrec.data.account import Account
from hybridrec.data.assembly import Cut, Decoding, Piece
from hybridrec.data.cutter import Cutter
from hybridrec.data.decode import Chunk
from hybridrec.data.effort import Effort
from hybridrec.data.open_groups import OpenGroups
from hybridrec.data.reading import Plan
from hybridrec.data.shuffle import Window
from hybridrec.types import Batch

LOCKED = 8  # batches ahead in page-locked memory: to lock that of one takes as long as many steps, and delays them


class Schedule:
    """Windows become pieces to decode and batches to pack; batches are kept until they are taken, in their order.

    Every choice here concerns timing alone. It has no threads: the lock of the loader guards all but `read`. With
    `before`, that of the epoch before, both together stay below the ceiling, and its batches are wanted first; what it
    says is read without its lock. Beside a GPU batches lie in page-locked memory.
    """

    def __init__(
        self, groups: OpenGroups, plan: Plan, effort: Effort, page_locked: bool, before: Schedule | None = None
    ) -> None:
        self.closed = False
        self.wanted = False  # whether somebody takes batches
        self.taken = 0  # batches handed out
        self._groups, self._plan, self._effort = groups, plan, effort
        self._page_locked, self._before = page_locked, before
        self._account = Account(effort.memory, plan.reading.row_bytes, None if before is None else before._account)
        self._cutter = Cutter(plan.cuts, self._account)
        self._windows = 0  # added
        self._all_planned = False
        self._undecoded: deque[Decoding] = deque()  # from the first window that is not decoded on
        self._finished: dict[int, Batch | BaseException] = {}

    # -- windows -----------------------------------------------------------------------------------------------------

    @property
    def wants_window(self) -> bool:
        """Whether the windows that were added are too few: to plan for the ceiling, or for even one batch."""
        return not self._all_planned and (
            self._cutter.rows < self._plan.ahead_rows or self._cutter.count == self.taken + len(self._finished)
        )

    def add(self, window: Window, done: int) -> None:
        """The next window of the plan; an earlier run has delivered `done` of its rows."""
        if window.rows == done:
            return
        decoding = Decoding.begin(self._windows, window, done, self._plan.reading.borders)
        self._windows += 1
        self._undecoded.append(decoding)
        for piece in decoding.pieces:
            self._groups.add(piece)
        self._cutter.add(decoding)

    def end(self, whole: bool) -> None:
        """The plan is at its end, or broke off and is not whole."""
        self._all_planned = True
        self._cutter.end(whole)

    # -- jobs --------------------------------------------------------------------------------------------------------

    @property
    def has_job(self) -> bool:
        return self._may_pack() or self._may_decode()

    @property
    def all_begun(self) -> bool:
        """Whether every piece is decoded, or being decoded."""
        return self._all_planned and self._groups.first is None

    @property
    def all_packed(self) -> bool:
        """Whether every batch is packed, or being packed."""
        return self.all_begun and not self._undecoded and self._cutter.first is None

    def next_cut(self) -> Cut | None:
        """The batch to pack now."""
        return self._cutter.take() if self._may_pack() else None

    def next_piece(self) -> Piece | None:
        """The piece to decode now; its memory is counted from here on."""
        if not self._may_decode():
            return None
        piece = self._groups.take()
        self._account.begin(piece)
        return piece

    def read(self, piece: Piece) -> Chunk:
        return self._groups.read(piece, self._last_groups(), lambda: self.closed)

    def decoded(self, piece: Piece) -> None:
        """What `next_piece` gave was read, or could not be."""
        self._groups.done(piece)
        self._account.end(piece)
        window = piece.window
        window.undecoded -= 1
        if window.undecoded == 0:
            self._cutter.decoded(window)
            while self._undecoded and self._undecoded[0].undecoded == 0:
                self._undecoded.popleft()

    def packed(self, cut: Cut, made: Batch | BaseException) -> None:
        """What `next_cut` gave has become a batch, or failed."""
        self._finished[cut.number] = made
        if isinstance(made, Batch):
            self._account.keep(made)
        self._cutter.packed(cut)

    def _may_pack(self) -> bool:
        """The next batch is soon wanted; or else decoded just now, and packed best while it is in the cache."""
        if (first := self._cutter.first) is None:
            return False
        ahead = first - self.taken
        if self._page_locked and ahead + self._left_before() >= max(LOCKED, self._effort.prefetch):
            return False
        if ahead < self._effort.prefetch:
            return True
        return ahead * self._plan.cuts.batch_size < self._plan.ahead_rows and self._account.below_ceiling

    def _may_decode(self) -> bool:
        """The next piece is within the ceiling, or needed before anything else can leave."""
        first = self._groups.first
        return first is not None and (first.window is self._undecoded[0] or self._account.below_ceiling)

    def _left_before(self) -> int:
        """Batches of the epoch before that are yet to be taken; none where somebody takes those of this one."""
        before = None if self.wanted else self._before
        return 0 if before is None or before.closed else before._cutter.count - before.taken

    def _last_groups(self) -> bool:
        """Whether there are too few groups left to keep all threads busy with one each, and all are wanted.

        Beside a GPU they are where batches are lacking: Arrow's threads do not give way as ours do (`give_way`).
        """
        threads = self._effort.threads
        few = threads > 1 and self._all_planned and len(self._groups) <= threads + 1
        return few and (not self._page_locked or self._late())

    def _late(self) -> bool:
        """Whether who takes batches has fewer ready than he wants."""
        return (self._before is None or self._before.closed) and len(self._finished) < self._effort.prefetch

    # -- batches -----------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the last batch was taken."""
        return self._all_planned and self.taken == self._cutter.count

    def take(self) -> Batch | None:
        """The next batch if it is made; raises what went wrong with it."""
        made = self._finished.pop(self.taken, None)
        if isinstance(made, BaseException):
            raise made
        if made is not None:
            self.taken += 1
            self._account.hand_out(made)
        return made

    def clear(self) -> None:
        """Let go of everything; nobody works on it any more."""
        self._groups.clear()
        self._cutter.clear()
        self._account.close()
        self._undecoded.clear()
        self._finished.clear()
        self._before = None
