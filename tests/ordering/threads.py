"""Work of other threads of the host, done by the thread of the test: the interpreter knows no other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.ordering.card import Card
from tests.ordering.clocks import Vector


class Thread:
    """One that the card takes for another, within `running`."""

    def __init__(self, card: Card, name: str) -> None:
        self._card, self.who = card, card.clocks.add(name, thread=True)

    @contextmanager
    def running(self, since: Vector) -> Iterator[None]:
        """It does what is within, and knows what was known since then; nobody knows what it does."""
        here = self._card.here
        before = here.who, here.stream, here.capture
        here.who, here.stream, here.capture = self.who, None, None
        self._card.clocks.follow(self.who, since)
        try:
            yield
        finally:
            here.who, here.stream, here.capture = before


class _Late(Future):
    def __init__(self, executor: LateExecutor) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        self._executor.until(self)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._executor.until(self)
        return super().exception(timeout)


class LateExecutor:
    """In place of a ThreadPoolExecutor with one thread: each thing is done when somebody wants to know what it did.

    So it is launched behind all that others have launched since it was asked for. Of a card that is prompt, at once.
    """

    def __init__(self, card: Card, name: str) -> None:
        self._card, self._thread = card, Thread(card, f"the thread {name}")
        self._waiting: deque[tuple[_Late, Callable[[], Any], Vector]] = deque()

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        made = _Late(self)
        self._waiting.append((made, partial(work, *given), self._card.clocks.seen(self._card.thread)))
        if self._card.prompt:
            self._do_next()
        return made

    def until(self, wanted: _Late) -> None:
        """Whoever asks knows what was done by then."""
        while not wanted.done():
            self._do_next()
        self._card.clocks.follow(self._card.thread, self._card.clocks.of(self._thread.who))

    def _do_next(self) -> None:
        future, work, since = self._waiting.popleft()
        with self._thread.running(since):
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)


class Started:
    """In place of a `threading.Thread`: all that it does, it does when it is started."""

    def __init__(self, card: Card, target: Callable[[], None], name: str) -> None:
        self._card, self._target, self._thread = card, target, Thread(card, f"the thread {name}")

    def start(self) -> None:
        with self._thread.running(self._card.clocks.seen(self._card.thread)):
            self._target()

    def join(self) -> None:
        self._card.clocks.follow(self._card.thread, self._card.clocks.of(self._thread.who))

    def is_alive(self) -> bool:
        return False
