"""How a command ends: errors as one line on stderr with an exit code, never a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from hybridrec.cli.joined import is_of_another, is_quiet, marked, tell_others
from hybridrec.remedy import on_command_line
from hybridrec.server.errors import Fenced, ServerLost

P = ParamSpec("P")
TOLD = (ValueError, OSError, ServerLost, Fenced)  # what a user can do something about


def told(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with its errors told to the user: those that are TOLD exit 1, Ctrl-C exits 130.

    Of many ranks, an error on one ends all of them.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            if not is_quiet():
                typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader (head, less) went away; keep Python from complaining about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except Exception as error:
            tell_others(error)
            if not isinstance(error, TOLD) and not is_of_another(error):
                raise
            typer.echo(marked(f"error: {_told(error)}"), err=True)
            raise typer.Exit(1) from None

    return run


def _told(error: Exception) -> str:
    """Its message: one line, or a line and a list below it."""
    bare = isinstance(error, OSError) and error.strerror is not None and error.filename is None
    text = str(error.strerror) if isinstance(error, OSError) and bare else on_command_line(error)  # without [Errno 28]
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines) or type(error).__name__
