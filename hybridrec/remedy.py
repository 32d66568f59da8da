"""Errors whose remedy depends on who meets them: a call in a program, a flag or setting on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TypeVar

E = TypeVar("E", bound=Exception)
SCHEMA_FILE = "in a schema file (write one with hybridrec inspect DATA --schema s.json, train with data.schema=s.json)"


def remedied(kind: type[E], what: str, *, call: str, setting: str) -> E:
    """An error that says `what` is wrong, then the `call` that mends it; the command line says the `setting` instead.

    >>> error = remedied(ValueError, "a.parquet is truncated", call="pass skip=True", setting="give --skip")
    >>> str(error), on_command_line(error)
    ('a.parquet is truncated; pass skip=True', 'a.parquet is truncated; give --skip')
    """
    error = kind(f"{what}; {call}")
    error.on_command_line = f"{what}; {setting}"  # pyright: ignore[reportAttributeAccessIssue] (read below)
    return error


def on_command_line(error: BaseException) -> str:
    """The message of an error as the command line tells it."""
    return getattr(error, "on_command_line", str(error))


def no_column(name: str, there: Sequence[str], holder: str = "the data") -> str:
    """That there is no such column, those that there are, and the one that may be meant.

    >>> no_column("clik", ["user", "click"])
    "no column named 'clik'; the data has user, click (did you mean 'click'?)"
    """
    near = difflib.get_close_matches(name, there, 1, 0.7)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    return f"no column named {name!r}; {holder} has {', '.join(there)}{meant}"


def within(where: str, error: Exception) -> ValueError:
    """An error with the place where it was met in front.

    >>> str(within("validation data", ValueError("there are no rows")))
    'validation data: there are no rows'
    """
    made = ValueError(f"{where}: {error}")
    made.on_command_line = f"{where}: {on_command_line(error)}"  # pyright: ignore[reportAttributeAccessIssue]
    return made
