"""Child: a process that is watched. Its lines come out with its name in front, and its end is told to a queue."""

from __future__ import annotations

import ctypes
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

PR_SET_PDEATHSIG = 1


class Ended(NamedTuple):
    """A child is no more."""

    child: Child
    code: int  # as subprocess has it: below 0, the signal that ended it


class Start(NamedTuple):
    """How a process is started."""

    command: Sequence[str]
    environment: dict[str, str]


class Output:
    """Lines for people, one at a time, each with the name of who says it."""

    def __init__(self, width: int, plain: str | None = None) -> None:
        """`plain`: whose standard output is passed on as it is."""
        self._width, self._plain = width, plain
        self._lock = threading.Lock()

    def line(self, name: str, text: str, to: IO[str]) -> None:
        """One line."""
        as_it_is = name == self._plain and to is sys.stdout
        with self._lock, suppress(OSError, ValueError):  # whoever read it is gone; processes must not wait for that
            to.write(f"{text}\n" if as_it_is else f"{name:<{self._width}} | {text}\n")
            to.flush()

    def say(self, text: str) -> None:
        """A line of the launcher itself."""
        self.line("launch", text, sys.stderr)


class Child:
    """A process in a session of its own, so that Ctrl-C reaches it through the launcher alone. It dies with it."""

    def __init__(
        self,
        name: str,
        start: Start,
        output: Output,
        events: queue.SimpleQueue[Any],
        hears: Callable[[str], bool] = lambda line: False,
    ) -> None:
        """`hears` gets each line of its standard output first; those that it takes are not passed on."""
        self.name, self._output, self._hears = name, output, hears
        self.process = subprocess.Popen(
            list(start.command),
            env=start.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_dying_with_parent(),
        )
        pipes = ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._await, args=(events,), daemon=True).start()

    def _read(self, pipe: IO[str], to: IO[str]) -> None:
        with pipe:
            for line in pipe:
                text = line.rstrip("\n").rpartition("\r")[2]
                if not (to is sys.stdout and self._hears(text)):
                    self._output.line(self.name, text, to)

    def _await(self, events: queue.SimpleQueue[Any]) -> None:
        code = self.process.wait()
        for reader in self._readers:
            reader.join(1.0)  # what it said comes before its end; a child of its own may keep the pipe
        events.put(Ended(self, code))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.alive:
            self.process.send_signal(number)

    def end(self, patience: float) -> None:
        """Wait for its end, and make one after so many seconds."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def how(code: int) -> str:
    """How a process has ended.

    >>> how(-9), how(1)
    ('SIGKILL', 'exit code 1')
    """
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _dying_with_parent() -> Callable[[], None] | None:
    """What a new process does first, on Linux, so that it is killed when the launcher is."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
