"""GPU kernels agree with the CPU under Triton's interpreter, which is chosen when kernels are defined: in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the interpreter comes with triton")

ROOT = Path(__file__).resolve().parents[1]
KERNELS = (
    *("tests/embedding/gpu", "tests/ordering", "tests/ops", "tests/models/layers/test_mlp_on_gpu.py"),
    *("tests/models/layers/test_cross_on_gpu.py", "tests/train/checkpoint/test_on_device.py"),
    *("tests/train/test_launches.py", "tests/train/test_replays.py"),
)
SHARED = ("tests/ops/hash_index", "tests/ops/hash_rows", "tests/ops/row_cache", "tests/ops/row_groups")
RANKS_AND_HOSTS = (
    *("tests/embedding/mixed", "tests/parallel/gpu", "tests/train/test_host_tables.py"),
    "tests/server/test_beside_a_card.py",
)


def failures(places: tuple[str, ...], **variables: str) -> str:
    """What the tests for a GPU in these places say on the CPU, if one fails."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu and not slow", *places, "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else (result.stdout + result.stderr)[-5000:]


@pytest.mark.timeout(3600)  # each of those tests has its own
def test_gpu_kernels_agree_with_the_cpu_under_the_interpreter():
    assert failures(KERNELS) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)  # each of those tests has its own
def test_gpu_kernels_agree_with_the_cpu_where_their_programs_disturb_each_other():
    assert failures(KERNELS, HYBRIDREC_INTERLEAVED="1") == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["2", "3"])
def test_hash_tables_caches_and_groups_agree_with_the_cpu_in_other_orders_too(seed: str):
    assert failures(SHARED, HYBRIDREC_INTERLEAVED=seed) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)  # each of those tests has its own
def test_ranks_on_gpus_and_tables_beside_them_agree_with_the_cpu_under_the_interpreter():
    assert failures(RANKS_AND_HOSTS) == ""
