"""Runs the tests of the C++ core against a build with address and undefined-behaviour checks: `make test-native`.

The checked module is built beside the ordinary one, in build/sanitized, and put in front of it in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitized"
PACKAGE = BUILD / "package"
DATA = ("decode", "dataset", "loader", "hash_cache", "shuffle", "hashing", "join")
EMBEDDING = ("store", "dense_store", "hash_store", "whole_rows", "training", "determinism", "integer_lookup")
TESTS = [
    *(f"tests/data/test_{name}.py" for name in DATA),
    *(f"tests/embedding/test_{name}.py" for name in EMBEDDING),
    "tests/ops/pair_dots/test_native.py",
    "tests/integration/test_random_files.py",
]


def build() -> None:
    """Compile the checked module and lay a package around it: the sources as links."""
    import nanobind

    tools = Path(sys.executable).parent
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    options = [f"-Dnanobind_DIR={nanobind.cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure = [cmake, "-S", str(ROOT), "-B", str(BUILD), "-DHYBRIDREC_SANITIZE=ON", *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", str(BUILD), "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    folder = PACKAGE / "hybridrec"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for source in (ROOT / "hybridrec").iterdir():
        if source.suffix != ".so":
            (folder / source.name).symlink_to(source)
    (native,) = BUILD.glob("_native*.so")
    (folder / native.name).symlink_to(native)


def run() -> int:
    """Start Python again with the checkers' libraries loaded first, as they demand."""
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    checks = {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself never frees everything
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # whose blocks the checker knows
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    return subprocess.run([sys.executable, __file__, "inside"], env={**os.environ, **checks}, cwd=ROOT).returncode


def inside() -> int:
    """In the checked process: import from the package above, whatever the virtual environment has installed."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path[:0] = [str(PACKAGE), str(ROOT)]
    import pytest

    from hybridrec import _native

    assert Path(_native.__file__).parent == PACKAGE / "hybridrec", _native.__file__
    return pytest.main(["-p", "no:cacheprovider", "--capture=sys", "--timeout=600", "-m", "not slow", *TESTS])


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        sys.exit(inside())
    build()
    sys.exit(run())
