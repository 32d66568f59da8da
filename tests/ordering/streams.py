"""Stand-ins for streams and events of CUDA: they do nothing but keep the clocks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from tests.ordering.clocks import Vector

if TYPE_CHECKING:
    from tests.ordering.captures import Capture
    from tests.ordering.card import Card


class Event:
    """A moment of a stream; nobody has waited for it as long as it is not recorded."""

    def __init__(self, card: Card, *ignored: Any, **options: Any) -> None:
        self._card = card
        self.moment: Vector | None = None
        self.within: Capture | None = None  # it is part of a graph, and nothing to anybody else

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._card.current
        clocks, who = self._card.clocks, stream.who
        clocks.follow(who, clocks.of(self._card.thread))
        self.moment, self.within = clocks.seen(who), stream.within

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._card.current).wait_event(self)

    def synchronize(self) -> None:
        if self.moment is not None and self._card.heeds():
            self._card.clocks.follow(self._card.thread, self.moment)

    def query(self) -> bool:
        """Whether it is over: the device is as slow as it may be, unless the card is prompt."""
        known = self._card.clocks.of(self._card.thread)
        if self.moment is None or bool((self.moment <= known).all()):
            return True
        if self._card.prompt:
            self.synchronize()
        return self._card.prompt


class Stream:
    """A stream beside others; within a capture it stands for a branch of the graph."""

    def __init__(self, card: Card, device: torch.device, name: str) -> None:
        self._card, self.device = card, device
        self._who = card.clocks.add(name)
        self.name = name

    @property
    def within(self) -> Capture | None:
        """The capture that it takes part in."""
        capture = self._card.capture
        return capture if capture is not None and self in capture.branches else None

    @property
    def who(self) -> int:
        """Its number among the clocks."""
        return self._who if (capture := self.within) is None else capture.branches[self]

    def wait_event(self, event: Event) -> None:
        if event.moment is None or not self._card.heeds():
            return
        capture = self._card.capture
        if capture is not None and event.within is capture and self.within is None:
            capture.join(self)
        if event.within is not self.within:
            self._card.wrong(f"{self.name} waits for an event that is not of the same capture")
        self._card.clocks.follow(self.who, event.moment)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self._card)
        event.record(self)
        return event

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def query(self) -> bool:
        return self.record_event().query()


class Currents(threading.local):
    """What is different from thread to thread."""

    stream: Stream | None = None
    who: int | None = None
    making: str | None = None  # what kind of memory is made
    waits: bool | None = None  # whether the host waits for a copy
    quiet: int = 0
    capture: Any = None
