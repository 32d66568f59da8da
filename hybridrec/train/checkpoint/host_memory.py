"""Whether the host has memory for rows of a GPU that are to change before they are written."""

from __future__ import annotations

from pathlib import Path

SPARE = 0.9  # of what is available may be taken


def must_wait(needed: int, available: int | None) -> bool:
    """Whether training has to stand still while a checkpoint is written, since the host cannot hold what is to be kept.

    >>> must_wait(100, 200), must_wait(100, 105), must_wait(0, 0), must_wait(100, None)
    (False, True, False, False)
    """
    return available is not None and needed > SPARE * available


def available() -> int | None:
    """Bytes that a process can still get without swapping, within the limit of its control group; None if unknown."""
    found = [_of_machine(), _of_group()]
    return min((size for size in found if size is not None), default=None)


def _of_machine() -> int | None:
    kilobytes = _fields(Path("/proc/meminfo")).get("MemAvailable:")
    return None if kilobytes is None else 1024 * kilobytes


def _of_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What is left below the limit; files that are kept in memory count as free."""
    limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
    if limit is None or used is None:
        return None
    return max(0, limit - used + _fields(folder / "memory.stat").get("inactive_file", 0))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """The first two words of every line: a name and a number."""
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
