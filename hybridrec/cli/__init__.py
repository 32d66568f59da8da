"""The command line: `hybridrec COMMAND`. Nothing loads before `main`, so that Ctrl-C is quiet from the start."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script. Exit codes: 1 an error, 2 wrong arguments, 130 Ctrl-C, 143 SIGTERM."""
    # A kill that can be caught unwinds the stack, so that no half-written file stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        from hybridrec.cli.commands import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
