"""What `import hybridrec` costs, and what it must not bring along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def measured(code: str) -> dict:
    """What a fresh process prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", ["hybridrec", "hybridrec.data", "hybridrec.data.synthetic", "hybridrec.cli"])
def test_importing_is_quick_and_leaves_torch_out(module):
    found = measured(
        "import json, os, sys, threading, time, numpy\n"
        "before, began = dict(os.environ), time.perf_counter()\n"
        f"import {module}\n"
        "print(json.dumps({'seconds': time.perf_counter() - began, 'torch': 'torch' in sys.modules,"
        " 'threads': threading.active_count(), 'environment': dict(os.environ) == before}))"
    )
    assert found["seconds"] < 1
    assert (found["torch"], found["threads"], found["environment"]) == (False, 1, True)


def test_the_data_room_costs_less_than_a_second_beyond_torch():
    found = measured(
        "import json, time, torch, pyarrow, pyarrow.parquet, pyarrow.dataset\n"
        "import torch.utils.data\n"
        "began = time.perf_counter()\n"
        "import hybridrec as hr\n"
        "hr.data.parquet, hr.data.Dataset, hr.Batch\n"
        "print(json.dumps(time.perf_counter() - began))"
    )
    assert found < 1


def test_every_public_name_can_be_had():
    found = measured(
        "import json, hybridrec as hr\n"
        "names = [n for n in hr.data.__all__ if callable(getattr(hr.data, n)) or n == 'NULL_ID']\n"
        "print(json.dumps([names == hr.data.__all__, [getattr(hr, n) is not None for n in hr.__all__]]))"
    )
    assert found[0]
    assert all(found[1])
