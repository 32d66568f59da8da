"""GPU tests on the CPU through Triton's interpreter, in a process of its own: it is chosen when kernels are defined."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = (
    *("tests/embedding/gpu", "tests/ops", "tests/models/layers/test_mlp_on_gpu.py"),
    *("tests/models/layers/test_cross_on_gpu.py", "tests/train/checkpoint/test_on_device.py"),
)
RANKS_AND_HOSTS = (
    *("tests/embedding/mixed", "tests/parallel/gpu", "tests/train/test_host_tables.py"),
    "tests/server/test_beside_a_card.py",
)


class Interpreted:
    """The tests of these places for a GPU, running beside whoever made this."""

    def __init__(self, *places: str) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (`close` closes it)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-m", "gpu and not slow", *places, "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def failures(self) -> str:
        """What they said, if one failed; waits for their end."""
        if self._process.wait() == 0:
            return ""
        self._said.seek(0)
        return self._said.read()[-5000:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()
