"""The benchmark of rows on disk answers on few rows; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "disk.py"


def test_it_prints_its_figures_as_json():
    command = [sys.executable, str(BENCHMARK), "--quick", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["correct"] is True
    assert answer["mmap_vs_memory"] > 0
