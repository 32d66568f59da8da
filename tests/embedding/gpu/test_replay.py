"""Launches that are recorded, and what else happens meanwhile."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridrec.embedding.gpu.replay import captured
from hybridrec.embedding.gpu.streams import stream_apart

HANDED_OUT = 100  # streams: torch has 32 of each priority


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What records nothing, where there is no card."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: nullcontext())


def test_no_garbage_is_collected_within_a_capture(recorder: None) -> None:
    seen = []
    captured(lambda: seen.append(gc.isenabled()))
    assert seen == [False]
    assert gc.isenabled()


def test_garbage_is_collected_again_after_a_capture_that_fails(recorder: None) -> None:
    def fail() -> Any:
        raise RuntimeError("no part of a graph")

    with pytest.raises(RuntimeError, match="no part of a graph"):
        captured(fail)
    assert gc.isenabled()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_stream_apart_is_one_that_a_capture_can_have() -> None:
    device = torch.device("cuda", 0)
    others = {torch.cuda.Stream(device).cuda_stream for _ in range(HANDED_OUT)}
    assert others.isdisjoint(stream_apart(device).cuda_stream for _ in range(HANDED_OUT))
