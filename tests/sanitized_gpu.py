"""Runs small cases of the GPU kernels under compute-sanitizer, for memory and for races: `make test-gpu`.

The tool comes with CUDA; without it, this says so and does nothing. Arguments pick the tests, as pytest takes them.
Large ones are smaller here, and what the tool does not allow is left out: `tests/gpu.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck")
FOUND = 99  # what the tool ends with where it found something
USUAL = [  # which launch all kernels that there are
    "tests/ops",
    "tests/embedding/gpu/test_training.py",
    "tests/embedding/gpu/test_max.py",
    "tests/embedding/gpu/test_hashed.py",
    "tests/embedding/gpu/test_weight_gradients.py",
    "tests/embedding/gpu/test_training_half.py::test_exact_updates_are_rounded_as_on_the_cpu_bit_for_bit",
]


def sanitizer() -> str | None:
    """Where the tool is."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def main() -> int:
    tool = sanitizer()
    if tool is None:
        print("compute-sanitizer is not there (it comes with the CUDA toolkit): kernels run without it", flush=True)
        return 0
    apart = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that every tensor has bounds of its own
    environment = {**os.environ, "HYBRIDREC_SANITIZED": "1", **apart}
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *(sys.argv[1:] or USUAL)]
    subprocess.run(tests, cwd=ROOT, env=environment, check=True)  # compiles the kernels, which the tool would slow down
    for check in TOOLS:
        print(f"{check}:", flush=True)
        command = [tool, "--tool", check, "--error-exitcode", str(FOUND), "--print-limit", "5", *tests]
        if status := subprocess.run(command, cwd=ROOT, env=environment).returncode:
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
