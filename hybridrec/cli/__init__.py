"""The command line: `hybridrec COMMAND`. Nothing loads before `main`, so that Ctrl-C is quiet from the start."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """The console script. Exit codes: 1 an error, 2 wrong arguments, 130 Ctrl-C, 143 SIGTERM."""
    # A kill that can be caught unwinds the stack, so that no half-written file stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background does not hear it
        signal.signal(signal.SIGINT, _ctrl_c)
    try:
        from hybridrec.cli.commands import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def _ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; within an import at its end: native packages that are broken off there stay broken.

    A second one does not wait for that end.
    """
    importer = None
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            importer = frame.f_back
        frame = frame.f_back
    if importer is None or sys.gettrace() is not None:
        raise KeyboardInterrupt
    importer.f_trace = _raise
    sys.settrace(lambda *_: None)  # else no frame is traced


def _raise(*_: object) -> NoReturn:
    sys.settrace(None)
    raise KeyboardInterrupt
