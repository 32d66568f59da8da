"""What `import hybridrec` must not bring along."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.patience import PATIENCE


def measured(code: str) -> dict:
    """What a fresh process prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


BROUGHT = "{name.split('.')[0] for name in set(sys.modules) - loaded} - sys.stdlib_module_names - {'hybridrec'}"


@pytest.mark.parametrize("module", ["hybridrec", "hybridrec.data", "hybridrec.data.synthetic", "hybridrec.cli"])
def test_importing_leaves_torch_out_and_what_is_slow_to_load(module):
    found = measured(
        "import json, os, sys, threading, numpy\n"
        "before, loaded = dict(os.environ), set(sys.modules)\n"
        f"import {module}\n"
        f"print(json.dumps({{'brought': list({BROUGHT}), 'threads': threading.active_count(),"
        " 'environment': dict(os.environ) == before}))"
    )
    assert "torch" not in found["brought"]
    assert not found["brought"] or module == "hybridrec.data.synthetic", "which writes by pyarrow"
    assert (found["threads"], found["environment"]) == (1, True)


def test_the_data_room_brings_nothing_beyond_torch_and_arrow():
    found = measured(
        "import json, sys, torch, pyarrow, pyarrow.parquet, pyarrow.dataset\n"
        "import torch.utils.data\n"
        "loaded = set(sys.modules)\n"
        "import hybridrec as hr\n"
        "hr.data.parquet, hr.data.Dataset, hr.Batch\n"
        f"print(json.dumps(list({BROUGHT})))"
    )
    assert set(found) <= {"pyarrow"}


def test_every_public_name_can_be_had():
    found = measured(
        "import json, hybridrec as hr\n"
        "names = [n for n in hr.data.__all__ if callable(getattr(hr.data, n)) or n == 'NULL_ID']\n"
        "print(json.dumps([names == hr.data.__all__, [getattr(hr, n) is not None for n in hr.__all__]]))"
    )
    assert found[0]
    assert all(found[1])
