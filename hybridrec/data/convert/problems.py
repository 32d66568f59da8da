"""Malformed lines: an error that names file and line, or a count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

POLICIES = ("error", "skip")
EXAMPLES = 5


@dataclass
class Problems:
    """What to do about malformed lines, and what was done.

    >>> problems = Problems("skip")
    >>> problems.add("a.csv", lambda: 7, "2 fields, not 3")
    >>> problems.count, problems.examples
    (1, ['a.csv, line 7: 2 fields, not 3'])
    """

    policy: str = "error"
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"on_error={self.policy!r} is not one of {', '.join(POLICIES)}")

    def add(self, name: str, line: Callable[[], int], reason: str) -> None:
        """Raise, or count; `line` is a function because finding the number may take a pass over the file."""
        if self.policy == "error":
            raise ValueError(f"{name}, line {line()}: {reason}; correct it, or pass --on-error skip (on_error='skip')")
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{name}, line {line()}: {reason}")


def shown(text: str, width: int = 60) -> str:
    """Text from a file as it may stand in a message: quoted, and cut when long."""
    return repr(text if len(text) <= width else text[: width - 3] + "...")
