"""What is done as a whole: Ctrl-C waits until it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unbroken() -> Iterator[None]:
    """Within it Ctrl-C waits, and does at the end what it would have done.

    It comes as well when a launch has been made as before it, and who is told cannot know which. What can be undone
    but once, such as an exchange, is therefore not to be interrupted. No thread but the main one ever is.

    >>> done = []
    >>> try:
    ...     with unbroken():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("all")
    ... except KeyboardInterrupt:
    ...     done.append("then interrupted")
    >>> done
    ['all', 'then interrupted']
    """
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
