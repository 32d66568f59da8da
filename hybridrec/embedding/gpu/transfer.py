"""Copies between the memory of a card and that of the host, in parts: none needs a second table on the card."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.dense_store import is_run
from hybridrec.embedding.gpu.streams import stream_apart

PART = 1 << 26  # bytes that go at a time


def rows_of_part(row_bytes: int) -> int:
    """How many rows go at a time.

    >>> rows_of_part(512)
    131072
    """
    return max(1, PART // max(1, row_bytes))


def to_host(values: Tensor, after: Any = None) -> Tensor:
    """A copy of contiguous values in ordinary memory of the host, complete when it is returned.

    Parts go through two pinned buffers, so that one is filled while the other is emptied: to pin all of the target
    would take longer than the copy. They are read when the event `after` has come, by default all work so far of the
    current stream.
    """
    made = torch.empty(values.shape, dtype=values.dtype)
    if values.device.type == "cpu":
        return made.copy_(values)
    if not values.numel():
        return made
    stream = stream_apart(values.device)
    stream.wait_event(after or torch.cuda.current_stream(values.device).record_event())
    size = min(values.numel(), rows_of_part(values.dtype.itemsize))
    buffers = [torch.empty(size, dtype=values.dtype, pin_memory=True) for _ in range(2)]
    waiting: list[tuple[Any, Tensor, Tensor]] = []
    for number, (source, target) in enumerate(zip(values.view(-1).split(size), made.view(-1).split(size), strict=True)):
        buffer = buffers[number % 2][: len(source)]
        with torch.cuda.stream(stream):
            buffer.copy_(source, non_blocking=True)
        waiting.append((stream.record_event(), buffer, target))
        if len(waiting) == 2:
            _emptied(*waiting.pop(0))
    for each in waiting:
        _emptied(*each)
    return made


def _emptied(filled: Any, buffer: Tensor, target: Tensor) -> None:
    filled.synchronize()
    target.copy_(buffer)


def read_rows(values: Tensor, at: Tensor) -> Tensor:
    """Rows of a tensor on any device, those of int64 `at` on the CPU, copied to the CPU.

    >>> read_rows(torch.arange(4.0), torch.tensor([3, 1]))
    tensor([3., 1.])
    """
    made = torch.empty(len(at), *values.shape[1:], dtype=values.dtype)
    size = rows_of_part(values[:1].nbytes)
    for target, part in zip(made.split(size), at.split(size), strict=True):
        target.copy_(values[_run(part)] if is_run(part) else values[part.to(values.device)])
    return made


def write_rows(values: Tensor, at: Tensor, given: Tensor | float) -> None:
    """Give rows of a tensor on any device, those of int64 `at` on the CPU, other values: one for each, or the same.

    >>> values = torch.zeros(4)
    >>> write_rows(values, torch.tensor([3, 1]), torch.tensor([5.0, 6.0]))
    >>> values
    tensor([0., 6., 0., 5.])
    """
    size = rows_of_part(values[:1].nbytes)
    for first in range(0, len(at), size):
        part = at[first : first + size]
        new = given[first : first + size] if isinstance(given, Tensor) else values.new_tensor(given)
        if is_run(part):
            values[_run(part)].copy_(new)
        else:
            values[part.to(values.device)] = new.to(values)


def _run(ids: Tensor) -> slice:
    return slice(int(ids[0]), int(ids[-1]) + 1)
