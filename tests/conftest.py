"""How all tests run: the search that hypothesis makes, the real data sets, signals, garbage, and their order."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine can stall any example, so none has a deadline; the same examples come each time, so a
# change is what makes a test fail. HYBRIDREC_LONG=1 searches wider, HYBRIDREC_LONG=anew for other examples each time.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=200)
settings.register_profile("anew", settings.get_profile("long"), derandomize=False)
settings.load_profile({"1": "long", "anew": "anew"}.get(os.environ.get("HYBRIDREC_LONG", ""), "default"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of the real data sets: HYBRIDREC_DATA, else ../shared/data beside the repository."""
    given = os.environ.get("HYBRIDREC_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set HYBRIDREC_DATA to the folder that holds it")
    return folder


# -- programs of kernels ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """HYBRIDREC_INTERLEAVED=3: programs of interpreted kernels run at once, as the seed 3 draws it."""
    if seed := os.environ.get("HYBRIDREC_INTERLEAVED"):
        from tests.interleaved import interleave

        interleave(monkeypatch, int(seed))


# -- signals ---------------------------------------------------------------------------------------------------


def _heed_signals() -> None:
    """Where a shell starts the tests in the background they ignore Ctrl-C, and so would all that they start."""
    meant = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    for number, action in meant.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


# -- garbage ---------------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    _heed_signals()
    gc.disable()  # until all tests are there


def pytest_collection_finish() -> None:
    """What is loaded by now stays: tests that collect garbage do not look at half a million objects each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


# -- order -----------------------------------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first: where processes share the tests, the others take the rest meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_interpreted.py")
