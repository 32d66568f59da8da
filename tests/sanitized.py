"""Runs the tests of the C++ core against a build with address and undefined-behaviour checks: `make test-native`.

The checked module is built beside the ordinary one, in build/sanitized, and put in front of it in processes of their
own: one for the tests of data, one for those of embeddings, side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.native import ROOT, build, side_by_side

PACKAGE = ROOT / "build" / "sanitized" / "package"
DATA = ("decode", "dataset", "loader", "hash_cache", "shuffle", "shuffled_batches", "hashing", "join")
EMBEDDING = ("store", "dense_store", "hash_store", "whole_rows", "training", "determinism", "integer_lookup")
TESTS = {
    "data": [*(f"tests/data/test_{name}.py" for name in DATA), "tests/integration/test_random_files.py"],
    "embeddings": [*(f"tests/embedding/test_{name}.py" for name in EMBEDDING), "tests/ops/pair_dots/test_native.py"],
}


def lay(folder: Path) -> None:
    """A package around the checked module, which was built in this folder: the sources as links."""
    package = PACKAGE / "hybridrec"
    package.mkdir(parents=True, exist_ok=True)
    for old in package.iterdir():
        old.unlink()
    for source in (ROOT / "hybridrec").iterdir():
        if source.suffix != ".so":
            (package / source.name).symlink_to(source)
    (native,) = folder.glob("_native*.so")
    (package / native.name).symlink_to(native)


def run() -> int:
    """Start Python again with the checkers' libraries loaded first, as they demand; 1 if a test failed."""
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
    command = [sys.executable, "-m", "tests.sanitized"]
    return side_by_side({f"tests of {part} on a checked build": [*command, part] for part in TESTS}, checks)


def inside(part: str) -> int:
    """In a checked process: import from the package above, whatever the virtual environment has installed."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path[:0] = [str(PACKAGE), str(ROOT)]
    import pytest

    from hybridrec import _native

    assert Path(_native.__file__).parent == PACKAGE / "hybridrec", _native.__file__
    return pytest.main(["-p", "no:cacheprovider", "--capture=sys", "-m", "not slow", *TESTS[part]])


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(inside(sys.argv[1]))
    lay(build("address", "_native"))
    sys.exit(run())
