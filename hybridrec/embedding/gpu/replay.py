"""Launches that are recorded once and replayed: the host then pays for one of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch


class Replay:
    """CUDA graphs of launches over memory that stays, by what is different between them.

    The launches must have run before, so that nothing is compiled while they are recorded.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Callable[[], None]]] = {}

    def run(self, key: Hashable, launches: Callable[[], None]) -> None:
        """Do what the launches do."""
        if torch.cuda.is_current_stream_capturing():
            return launches()
        if key not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                launches()
            self._graphs[key] = graph, launches  # which hold the memory
        return self._graphs[key][0].replay()
