"""Progress on stderr: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

PLAIN_EVERY = 5.0  # seconds


@contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function of (done, total, note) that shows how far the work is."""
    if quiet:
        yield lambda done, total, note: None
    elif sys.stderr.isatty():
        yield from _bar(title)
    else:
        yield _plain(title)


def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, note="")
        yield lambda done, total, note: bar.update(task, completed=done, total=total, note=note)


def _plain(title: str) -> Callable[[int, int, str], None]:
    last = time.monotonic()

    def show(done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_EVERY:
            last = time.monotonic()
            typer.echo(f"{title}: {100 * done / max(total, 1):.0f} %, {note}", err=True)

    return show


def human_bytes(count: float) -> str:
    """Bytes for people.

    >>> human_bytes(999), human_bytes(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
