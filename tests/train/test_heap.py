from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from hybridrec.train import heap
from tests.patience import PATIENCE

FAULTS = """
import resource, torch
from hybridrec.train.heap import keep_freed_memory
print(keep_freed_memory())
def step():
    for _ in range(3):
        parts = [torch.ones(250_000) for _ in range(64)]  # 1 MB each
step()  # from the third on, glibc keeps most of such memory by itself
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    """What keep_freed_memory() said in a process of its own, and the page faults of a second step that takes 64 MB."""
    run = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    said, count = run.stdout.split()
    return said == "True", int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")
def test_a_step_finds_the_memory_that_the_one_before_freed():
    said, count = faults()
    assert said
    assert count < 1000  # 64 MB are 16,384 pages


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")
def test_settings_of_the_environment_are_respected():
    said, count = faults(MALLOC_TRIM_THRESHOLD_="1000000", MALLOC_MMAP_THRESHOLD_="1000000")
    assert not said
    assert count > 16_000


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert heap.keep_freed_memory() is False
