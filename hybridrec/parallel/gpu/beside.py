"""Beside: a stream of its own for what need not wait for the model. On the CPU it is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Beside:
    """A stream beside the current one, a new one if none is given, and the events that order the two."""

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        self.device = device
        self._stream = stream or (torch.cuda.Stream(device) if device.type == "cuda" else None)

    def moment(self) -> Any:
        """What is done when all that the current stream was given until now is."""
        return None if self._stream is None else torch.cuda.current_stream(self.device).record_event()

    @contextmanager
    def after(self, moment: Any, *read: Tensor | None) -> Iterator[None]:
        """Within it, launches go to the stream of its own, once the moment has come. They read these tensors."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            if moment is not None:
                self._stream.wait_event(moment)
            _read_by(self._stream, read)
            yield

    def wait(self, moment: Any, *read: Tensor | None) -> None:
        """The current stream goes on when the moment has come, and reads these tensors."""
        if self._stream is not None:
            here = torch.cuda.current_stream(self.device)
            if moment is not None:
                here.wait_event(moment)
            _read_by(here, read)

    def on_host(self, numbers: Tensor) -> Tensor:
        """A copy on the host, once it is there; only this thread waits."""
        if self._stream is None:
            return numbers
        made = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        made.copy_(numbers, non_blocking=True)
        torch.cuda.current_stream(self.device).record_event().synchronize()
        return made

    def sent(self, numbers: Tensor) -> Tensor:
        """Numbers of the host on the device; nobody waits."""
        if self._stream is None:
            return numbers
        return numbers.pin_memory().to(self.device, non_blocking=True)


def _read_by(stream: Any, tensors: tuple[Tensor | None, ...]) -> None:
    """Their memory is not to be used anew before the stream is done with it."""
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            tensor.record_stream(stream)
