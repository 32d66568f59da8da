"""How long tests wait for what must come. A machine may be slow or busy: only what hangs takes this long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 600.0  # seconds


def wait_for(what: Callable[[], Any]) -> Any:
    """Until `what()` is true; what it is then."""
    until = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.01)
    return found
