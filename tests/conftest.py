"""How all tests run: the search that hypothesis makes, and the real data sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine can stall any example, so none has a deadline; the same examples come each time, so a
# change is what makes a test fail. HYBRIDREC_LONG=1 searches wider and anew.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile("long", deadline=None, derandomize=False, max_examples=1000, print_blob=True)
settings.load_profile("long" if os.environ.get("HYBRIDREC_LONG") == "1" else "default")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the real data sets: HYBRIDREC_DATA, else ../shared/data beside the repository."""
    given = os.environ.get("HYBRIDREC_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set HYBRIDREC_DATA to the folder that holds it")
    return folder
