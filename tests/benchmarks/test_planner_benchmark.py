"""The planner's benchmark answers on few cases; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planner.py"


def test_it_prints_its_figures_as_json():
    command = [sys.executable, str(BENCHMARK), "--quick", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(result.stdout.splitlines()[-1])
    assert 0.999 <= answer["planner_gap"] <= 1.05
    assert answer["plan_seconds"] > 0
    assert answer["large"]["devices"] == 8
