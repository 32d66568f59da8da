"""News: numbers of a device that the host knows as they were some time ago, because it does not wait for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

Known = TypeVar("Known")


class Told(NamedTuple, Generic[Known]):
    """What stood there, as a list, and what the host knew when it asked."""

    numbers: list[Any]
    known: Known


class _Coming(NamedTuple, Generic[Known]):
    numbers: Tensor  # in page-locked memory
    there: Any  # the event after which they can be read
    known: Known


class News(Generic[Known]):
    """Of a tensor on a device; any thread may ask and hear. Without `record`, all is known at once.

    >>> standing = torch.tensor([3])
    >>> news = News(standing, known="at first")
    >>> news.latest
    Told(numbers=[3], known='at first')
    >>> _ = standing.add_(1)
    >>> news.ask("then")
    >>> news.latest
    Told(numbers=[4], known='then')
    """

    def __init__(self, of: Tensor, known: Known, record: Callable[[], Any] | None = None) -> None:
        self._of, self._record = of, record  # `record` gives an event that is over when all launched so far is
        self._latest = Told(of.tolist(), known)
        self._coming: deque[_Coming[Known]] = deque()
        self._spare: list[Tensor] = []
        self._lock = threading.Lock()

    @property
    def latest(self) -> Told[Known]:
        """The newest that is there."""
        with self._lock:
            self._hear()
            return self._latest

    def ask(self, known: Known) -> None:
        """Have the device tell how things stand after all that is launched; once, where no more is known than then."""
        with self._lock:
            self._hear()
            if self._record is None:
                self._latest = Told(self._of.tolist(), known)
            elif not self._coming or self._coming[-1].known != known:
                numbers = self._spare.pop() if self._spare else self._empty()
                numbers.copy_(self._of, non_blocking=True)
                self._coming.append(_Coming(numbers, self._record(), known))

    def catch_up(self) -> Told[Known]:
        """The newest but one at least, for which this waits: the device is left with what was launched since."""
        with self._lock:
            if len(self._coming) > 1:
                self._coming[-2].there.synchronize()
            self._hear()
            return self._latest

    def _hear(self) -> None:
        last = None
        while self._coming and self._coming[0].there.query():
            last = self._coming.popleft()
            self._spare.append(last.numbers)
        if last is not None:
            self._latest = Told(last.numbers.tolist(), last.known)

    @torch.inference_mode(False)  # what is made where gradients are off is written where they are not
    def _empty(self) -> Tensor:
        return torch.empty(self._of.shape, dtype=self._of.dtype, pin_memory=self._of.is_cuda)
