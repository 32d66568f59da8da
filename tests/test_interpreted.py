"""GPU kernels on the CPU through Triton's interpreter, in a process of its own: it is chosen when they are defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLACES = (
    *("tests/embedding/gpu", "tests/embedding/mixed", "tests/ops", "tests/parallel/gpu"),
    *("tests/models/layers/test_mlp_on_gpu.py", "tests/train/checkpoint/test_on_device.py"),
    "tests/train/test_host_tables.py",
)


@pytest.mark.timeout(300)
def test_gpu_kernels_agree_with_the_cpu_under_the_interpreter():
    pytest.importorskip("triton", reason="the interpreter comes with triton")
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu and not slow", *PLACES, "-p", "no:cacheprovider"],
        cwd=root,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
