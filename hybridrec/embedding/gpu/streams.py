"""Streams for copies beside a model."""

from __future__ import annotations

import torch


def stream_apart(device: torch.device) -> torch.cuda.Stream:
    """A stream for copies that another thread may send while this one captures a CUDA graph.

    What is sent to a stream that takes part in a capture is recorded and not done, whoever sends it; an event recorded
    there is good for nothing outside. And torch hands out the same 32 streams of a priority in turn, so that of a copy
    may be the very one of a capture. Captures have streams of the usual priority; this is one of another, of which
    copies take no notice.
    """
    return torch.cuda.Stream(device, priority=-1)
