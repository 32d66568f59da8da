"""Lane: what the host does beside whoever asks for it, one thing after another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class Lane:
    """A thread that works for a device, each time on the stream of who asked; it goes when this does.

    For the CPU there is none, and all is done at once: kernels are interpreted there, one at a time.

    >>> lane = Lane(torch.device("cpu"))
    >>> lane.do(lambda: 1 + 1).result()
    2
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "cold-rows") if device.type == "cuda" else None
        self._last: Future[Any] | None = None

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """What comes of it, when all that was asked for before is done; an error is raised for who wants to know."""
        self._last = self._at_once(work) if self._thread is None else self._later(self._thread, work)
        return self._last

    def wait(self) -> None:
        """Return when nothing is left to do; raise what the last thing did."""
        if self._last is not None:
            self._last.result()

    def _later(self, thread: ThreadPoolExecutor, work: Callable[[], Any]) -> Future[Any]:
        stream = torch.cuda.current_stream(self._device)

        def there() -> Any:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                return work()

        return thread.submit(there)

    @staticmethod
    def _at_once(work: Callable[[], Any]) -> Future[Any]:
        made: Future[Any] = Future()
        try:
            made.set_result(work())
        except Exception as error:
            made.set_exception(error)
        return made
