"""Builds the tests of the C++ core, csrc/tests, and runs them under the sanitizers: `make test-native`.

Once with the thread sanitizer, once with the address and undefined-behaviour ones. No Python is in these programs, so
the sanitizers see every allocation and every thread. An argument picks the tests whose sentence contains it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc"
BUILD = ROOT / "build" / "native"
CHECKS = {"thread": "thread", "address": "address,undefined"}
FLAGS = [
    *("-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SOURCES}"),
    "-DHYBRIDREC_NO_CLONES",  # the checks are not there yet when clones are chosen
]
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def sources() -> list[Path]:
    """The tests and the core without its bindings; of the kernels, those for any processor."""
    core = [path for path in SOURCES.glob("*.cpp") if not path.name.startswith("bindings")]
    kernels = [SOURCES / "kernels" / name for name in ("kernels.cpp", "generic.cpp")]
    return sorted([*core, *kernels, *SOURCES.glob("tests/*.cpp")])


def compile_one(check: str, source: Path) -> Path:
    """Compile a source for a check, unless that was done after the last change of any of them."""
    target = BUILD / check / source.relative_to(SOURCES).with_suffix(".o")
    headers = [path for kind in ("*.h", "*.inl") for path in SOURCES.rglob(kind)]
    if target.exists() and target.stat().st_mtime > max(path.stat().st_mtime for path in [source, *headers]):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, *FLAGS, f"-fsanitize={CHECKS[check]}", "-c", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def build(check: str) -> Path:
    """The program with all tests."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compile_one(check, source), sources()))
    program = BUILD / check / "run_tests"
    options = [f"-fsanitize={CHECKS[check]}", "-pthread", "-o", str(program)]
    link = [os.environ.get("CXX", "g++"), *map(str, objects), *options]
    subprocess.run(link, check=True)
    return program


def main(pick: list[str]) -> int:
    """Build and run everything; 1 if anything failed."""
    failed = 0
    for check in CHECKS:
        print(f"csrc/tests with -fsanitize={CHECKS[check]}", flush=True)
        failed |= subprocess.run([str(build(check)), *pick], env={**os.environ, **OPTIONS}).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
