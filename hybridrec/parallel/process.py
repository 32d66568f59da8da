"""Process: which one a rank is, so that others on its host can see whether it has ended."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUMBERS = Path("/proc/self/ns/pid")  # containers count processes for themselves


class Process(NamedTuple):
    """A process, by where it is counted, its number there, and when it began: numbers are used again."""

    counted: str
    number: int
    began: str

    @classmethod
    def here(cls) -> Process:
        """This one."""
        counted = f"{host_name()} {os.readlink(_NUMBERS) if _NUMBERS.is_symlink() else ''}"
        return cls(counted, os.getpid(), (_state_and_start(os.getpid()) or ("", ""))[1])

    def ended(self) -> bool | None:
        """Whether it is no more; None where that cannot be seen from here.

        >>> Process.here().ended(), Process("another host", 1, "").ended()
        (False, None)
        """
        here = Process.here()
        if self.counted != here.counted or not here.began:
            return None
        found = _state_and_start(self.number)
        return found is None or found[0] in "ZX" or found[1] != self.began


def host_name() -> str:
    """This host since it was started."""
    return f"{platform.node()} {_BOOT.read_text().strip() if _BOOT.exists() else ''}"


def _state_and_start(number: int) -> tuple[str, str] | None:
    """What Linux says of a process; None where there is none of this number."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()  # its name may have any letters
    except OSError:
        return None
    return fields[0], fields[19]
