"""GPU kernels on the CPU through Triton's interpreter, in a process of its own: it is chosen when they are defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = (
    *("tests/embedding/gpu", "tests/ops", "tests/models/layers/test_mlp_on_gpu.py"),
    "tests/train/checkpoint/test_on_device.py",
)
RANKS_AND_HOSTS = ("tests/embedding/mixed", "tests/parallel/gpu", "tests/train/test_host_tables.py")


@pytest.mark.timeout(300)
def test_gpu_kernels_agree_with_the_cpu_under_the_interpreter():
    interpret(*KERNELS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_on_gpus_and_tables_beside_them_agree_with_the_cpu_under_the_interpreter():
    interpret(*RANKS_AND_HOSTS)


def interpret(*places: str) -> None:
    """Run the tests of these places for a GPU, none of which may fail."""
    pytest.importorskip("triton", reason="the interpreter comes with triton")
    root = Path(__file__).resolve().parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu and not slow", *places, "-p", "no:cacheprovider"],
        cwd=root,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
