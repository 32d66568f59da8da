"""Launches that are recorded once and replayed: the host then pays for one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch


class Replay:
    """CUDA graphs of launches over memory that stays, by what is different between them.

    The launches must have run before, so that nothing is compiled while they are recorded.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[Callable[[], None], Callable[[], None]]] = {}

    def run(self, key: Hashable, launches: Callable[[], None]) -> None:
        """Do what the launches do."""
        if torch.cuda.is_current_stream_capturing():
            return launches()
        if key not in self._graphs:
            self._graphs[key] = captured(launches), launches  # which hold the memory
        return self._graphs[key][0]()


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """What replays the launches of some work; they are recorded now, and nothing of it is done.

    Other threads may send what they like meanwhile, but not to streams that take part: see `stream_apart`.
    """
    graph = torch.cuda.CUDAGraph()
    with _without_garbage(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


@contextmanager
def _without_garbage() -> Iterator[None]:
    """No cycles of earlier models are collected.

    When pinned memory goes, torch marks its last use on all streams that used it. On one that is being captured such a
    mark is an error for whichever thread pins memory next, and looks at it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
