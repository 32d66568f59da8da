"""Card: a stand-in for a card, on which GPU code runs as it is, and which sees whether its streams are ordered.

Tensors "on" it lie in memory of the host, and say `cuda` when they are asked for their device. Operators and launches
are done at once, one after the other, so that results are right in any case; what is checked is whether anything but
luck would keep them right on a card, where streams run beside each other and beside the host:

- whether accesses of the same bytes, by different streams or by the host, are ordered where one of them writes;
- whether memory that is let go may be handed out anew while another stream still uses it;
- whether a capture waits for what is outside of it, or ends before all of its streams are one again.

Not seen are what native code of the host reads and writes by itself, and other cards. Kernels of which one acquires
what another releases, atomically, are ordered by that; other atomic operations order nothing, and do not conflict.

A test takes the fixture `card` and calls `card.check()`. The device is as slow as it may be: no event is over unless
somebody has waited for it, or `card.prompt` is set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from tests.ordering.captures import Capture
from tests.ordering.clocks import Clocks, Vector
from tests.ordering.memory import CARD, Block, Deed, Memory, Places
from tests.ordering.streams import Currents, Event, Stream

# What waits, or records a stream, for whoever calls it.
HELPERS = {"wait", "after", "_read_by"}
# Where the host looks at pinned memory without waiting, and can do with what it finds there.
GLANCES = {"tier_class.py:watch", "lookup.py:watch", "lookup.py:refuse"}
CODE = str(Path(__file__).resolve().parents[2] / "hybridrec")


class Card:
    """The state of the stand-in: its clocks, its memory, and what each thread is doing."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self.clocks = Clocks()
        self.memory = Memory(self.clocks)
        self.here = Currents()
        self.prompt = False
        self.empty: set[int] = set()  # storages on the card that have no byte
        self.released: dict[int, Vector] = {}  # by the addresses of atomic operations that say so
        self.accesses = 0  # that were looked at
        self.left_out: set[str] = set()  # functions whose waits are left out, such as "group.py:prepare waits"
        self.waits: set[str] = set()  # all functions that have waited for something
        self._usual = Stream(self, self.device, "the usual stream")

    # -- who does it --------------------------------------------------------------------------------------

    @property
    def thread(self) -> int:
        """The number of this thread among the clocks."""
        if self.here.who is None:
            self.here.who = self.clocks.add("the host", thread=True)
        return self.here.who

    @property
    def current(self) -> Stream:
        return self.here.stream or self._usual

    @property
    def capture(self) -> Capture | None:
        return self.here.capture

    def stream(self, device: Any = None, priority: int = 0, **ignored: Any) -> Stream:
        return Stream(self, self.device, f"the stream of {caller()}")

    def event(self, *ignored: Any, **options: Any) -> Event:
        return Event(self)

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        before, self.here.stream = self.here.stream, stream or self.here.stream
        try:
            yield
        finally:
            self.here.stream = before

    def set_stream(self, stream: Stream) -> None:
        self.here.stream = stream

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """In place of `hybridrec.embedding.gpu.replay.captured`, for work that leaves what others read."""
        made = Capture(self, work)
        made.record()
        return made.replay

    def replayed(self, work: Callable[[], None]) -> Callable[[], None]:
        """The same for work that changes what is there, and so is not done for the capture.

        A capture waits for the device. This does not: with each replay of a step comes an update that seems new here.
        """
        return Capture(self, work).replay

    def synchronize(self, device: Any = None) -> None:
        self.clocks.follow(self.thread, self.clocks.everything())

    def await_current(self) -> None:
        """The host waits for the current stream, as it does where it reads a number of the device."""
        if self.capture is not None and not self.here.quiet:
            self.wrong(f"a capture waits for the device: {caller()}")
        self.current.synchronize()

    def heeds(self, what: str = "waits") -> bool:
        """Whether the function that waits for something, or records a stream, does so; a test may have it left out."""
        place = next((function(frame) for frame in frames() if frame.f_code.co_name not in HELPERS), "a test")
        place = f"{place} {what}"
        self.waits.add(place)
        return place not in self.left_out

    # -- what it does -------------------------------------------------------------------------------------

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nothing within it is done by the device."""
        self.here.quiet += 1
        try:
            yield
        finally:
            self.here.quiet -= 1

    def deed(self, who: int, what: str) -> Deed:
        self.clocks.follow(who, self.clocks.of(self.thread))
        return self.memory.deed(who, f"{what} ({caller()})")

    def add(self, address: int, size: int, kind: str) -> Block:
        """Some memory is there from now on."""
        block = Block(address, size, kind, self.current.who)
        if kind == CARD and self.capture is not None:
            self.capture.made(block)
        self.memory.add(block, self.deed(self.current.who if kind == CARD else self.thread, "an allocation"))
        return block

    def remove(self, block: Block) -> None:
        self.memory.remove(block, self.thread)

    def kind_of(self, tensor: Tensor) -> str | None:
        """Whether it lies on the card, or in pinned memory; None for other memory of the host."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return CARD if storage._cdata in self.empty else None
        found = self.memory.find(storage.data_ptr())
        return None if found is None else found.kind

    def access(self, block: Block, at: Places | slice, deed: Deed, kind: str) -> None:
        if deed.who == self.thread and glances():
            return
        self.accesses += 1
        self.memory.access(block, at, deed, kind)

    @property
    def record_stream(self) -> Callable[[Tensor, Stream], None]:
        """In place of `Tensor.record_stream`."""

        def recorded(tensor: Tensor, stream: Stream) -> None:
            if tensor.numel() and self.heeds("records"):
                block = self.memory.find(tensor.untyped_storage().data_ptr())
                assert block is not None, "only memory of a card is handed out by streams"
                assert block.kind == CARD, "only memory of a card is handed out by streams"
                block.recorded.add(stream.who)

        return recorded

    # -- what was found -----------------------------------------------------------------------------------

    def wrong(self, what: str) -> None:
        self.memory.findings.setdefault(f"{what} ({caller()})")

    @property
    def findings(self) -> list[str]:
        return list(self.memory.findings)

    def check(self) -> None:
        """Raise if anything was found; or if nothing was looked at."""
        assert self.accesses, "nothing was done on the card"
        assert not self.findings, "\n".join(["", *self.findings])


def frames() -> Iterator[FrameType]:
    """What is being run of the project, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(CODE):
            yield frame
        frame = frame.f_back


def function(frame: FrameType) -> str:
    """A function of the project, with its file."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


def caller() -> str:
    """The line of the project that is being run, and those that called it."""
    lines = (f"{frame.f_code.co_filename[len(CODE) + 1 :]}:{frame.f_lineno}" for frame in frames())
    return " < ".join(islice(lines, 3)) or "a test"


def glances() -> bool:
    """Whether the host looks at what may not be there yet, and knows it."""
    return any(function(frame) in GLANCES for frame in islice(frames(), 2))
