"""Builds the C++ core for the sanitizers, and runs its tests, csrc/tests, under them: `make test-native`.

Once with the thread sanitizer, once with the address and undefined-behaviour ones. No Python is in these programs, so
the sanitizers see every allocation and every thread. An argument picks the tests whose sentence contains it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
CHECKS = {"thread": "thread", "address": "address,undefined"}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def build(check: str, target: str) -> Path:
    """The folder where a target, run_tests or _native, was built for a check; what has not changed is kept there."""
    import nanobind

    folder, tools = ROOT / "build" / "sanitized" / check, Path(sys.executable).parent
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    options = [f"-Dnanobind_DIR={nanobind.cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DHYBRIDREC_SANITIZE={CHECKS[check]}", *options]
    compile_ = [cmake, "--build", str(folder), "--target", target, "--parallel", str(os.cpu_count())]
    for command in (configure, compile_):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def side_by_side(commands: dict[str, list[str]], variables: dict[str, str]) -> int:
    """Run all of them at once, and print under its title what each has said; 1 if one failed.

    Their files are in a folder that is gone afterwards, also where one is killed.
    """
    to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with TemporaryDirectory(prefix="hybridrec-native-") as folder, ThreadPoolExecutor(len(commands)) as readers:
        environment = {**os.environ, **variables, "TMPDIR": folder}
        runs = [subprocess.Popen(each, env=environment, cwd=ROOT, **to) for each in commands.values()]
        for title, said in zip(commands, readers.map(lambda each: each.communicate()[0], runs), strict=True):
            print(f"{title}\n{said}", flush=True)
    return int(any(each.returncode for each in runs))


def main(pick: list[str]) -> int:
    """Build and run everything; 1 if anything failed."""
    programs = {f"csrc/tests with -fsanitize={what}": build(check, "run_tests") for check, what in CHECKS.items()}
    return side_by_side({title: [str(at / "run_tests"), *pick] for title, at in programs.items()}, OPTIONS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
