"""A table on disk that is larger than the memory of its process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory_group import memory_group

ROOT = Path(__file__).resolve().parents[2]
MEMORY, ROWS = 96 << 20, 2_000_000  # of which a row has 157 bytes


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_table_of_three_times_the_memory_of_its_process_keeps_every_update(tmp_path: Path):
    with memory_group(MEMORY) as group:
        words = [str(group), str(tmp_path / "table"), str(ROWS), "5"]
        command = [sys.executable, "-m", "tests.embedding.beyond_memory", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # -9: it was given no more memory
    answer = json.loads(done.stdout)
    assert answer["file_bytes"] > 3 * MEMORY
    assert answer["reads_from_disk"] > 0, "the limit did not hold"
    assert not answer["huge_pages"], "it takes the memory of the machine for its own"
    assert answer["wrong"] == 0
