"""How much memory the host still has, for whoever is about to take much of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SPARE = 0.9  # of what is available may be taken


class _Names(NamedTuple):
    """What a version of control groups calls its limit, what is used of it, and files that could go from memory."""

    limit: str
    used: str
    files: str


_NAMES = {
    "": _Names("memory.max", "memory.current", "inactive_file"),  # the second version has no controllers
    "memory": _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def lacks(needed: int, available: int | None) -> bool:
    """Whether so many bytes are more than may be taken of those that are available; not where that is unknown.

    >>> lacks(100, 200), lacks(100, 105), lacks(0, 0), lacks(100, None)
    (False, True, False, False)
    """
    return available is not None and needed > SPARE * available


def available(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that a process can still get without swapping, within the limits of its control groups; None if unknown."""
    found = [_of_machine(proc), *(_left(folder, names) for folder, names in _groups(proc, groups))]
    return min((size for size in found if size is not None), default=None)


def _of_machine(proc: Path) -> int | None:
    kilobytes = _fields(proc / "meminfo").get("MemAvailable:")
    return None if kilobytes is None else 1024 * kilobytes


def _groups(proc: Path, root: Path) -> Iterator[tuple[Path, _Names]]:
    """The group of this process, and those that it is in. A container may see its own as the root, not by its path."""
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        kinds = [kind for kind in controllers.split(",") if kind in _NAMES]
        for kind in kinds:
            own = Path(group.lstrip("/"))
            for folder in (own, *own.parents):
                yield root / kind / folder, _NAMES[kind]


def _left(folder: Path, names: _Names) -> int | None:
    """What is left below the limit; files that are kept in memory count as free."""
    limit, used = _number(folder / names.limit), _number(folder / names.used)
    if limit is None or used is None:
        return None
    return max(0, limit - used + _fields(folder / "memory.stat").get(names.files, 0))


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
