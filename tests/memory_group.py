"""Control groups that limit the memory of a process, in tests that need that: below the group of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}  # second version and first


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group whose processes have so many bytes together, pages of files included; skips where none can be made."""
    made, why = None, "this system has no memory control groups"
    for parent, name in _parents():
        made = parent / f"hybridrec-test-{limit}"
        try:
            made.mkdir()
            (made / name).write_text(str(limit))
            break
        except OSError as error:
            made, why = _removed(made), f"no memory control group can be made here: {error}"
    if made is None:
        pytest.skip(why)
    try:
        yield made
    finally:
        _removed(made)


def _removed(group: Path) -> None:
    if group.exists():
        group.rmdir()


def _parents() -> Iterator[tuple[Path, str]]:
    """The groups that this process is in, and the name of their limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers in LIMITS:
            yield ROOT / controllers / group.lstrip("/"), LIMITS[controllers]
