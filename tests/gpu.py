"""What tests of GPU code share: they run on a card, or on the CPU through Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu") if INTERPRETED else torch.device("cuda", 0)

needs_gpu = [
    pytest.mark.filterwarnings(
        "ignore:.*encountered in:RuntimeWarning"
    ),  # numpy under the interpreter, on masked lanes
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (INTERPRETED or torch.cuda.is_available()),
        reason="needs a CUDA device, or TRITON_INTERPRET=1 as tests/test_interpreted.py sets it",
    ),
]
