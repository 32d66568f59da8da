"""`hybridrec bench`: the benchmarks of a checkout, by name."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

BESIDE = Path(__file__).resolve().parents[2]  # of an editable install, the checkout
STARTS = "options_of("  # a benchmark that answers a question has the options of all; other files are its parts


def bench(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which one; without, all are listed.")] = None,
    options: Annotated[list[str] | None, typer.Argument(metavar="[OPTION]...", help="Its own options.")] = None,
) -> None:
    """Run a benchmark of the source checkout, or list them: each is a question, with peers beside us.

    `hybridrec bench NAME ...` is `python benchmarks/NAME.py ...`. With --json its
    last line is one JSON object; --save keeps that in benchmarks/results. Each
    benchmark has options of its own: hybridrec bench NAME --help lists them.

    [bold]Examples[/bold]

    hybridrec bench

    hybridrec bench planner --quick

    hybridrec bench embedding_cpu --json --save
    """
    found = _questions(_folder())
    if name is None:
        width = max(map(len, found))
        typer.echo("\n".join(f"{each:<{width}}  {_asks(file)}" for each, file in found.items()))
        return
    if name not in found:
        raise ValueError(f"there is no benchmark {name!r}; there are {', '.join(found)}")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(found[name]), *(options or [])])  # signals and exit code are its own


def _folder() -> Path:
    """The folder of benchmarks: of this checkout, or of the one that we are in."""
    for root in (BESIDE, Path.cwd()):
        if (root / "benchmarks" / "question.py").is_file():
            return root / "benchmarks"
    raise ValueError(
        f"no benchmarks in {BESIDE} or {Path.cwd()}: they are part of the source, not of the installed package; run "
        "this in a checkout of hybridrec"
    )


def _questions(folder: Path) -> dict[str, Path]:
    files = sorted(file for file in folder.glob("*.py") if file.name != "question.py")
    return {file.stem: file for file in files if STARTS in file.read_text()}


def _asks(file: Path) -> str:
    """The first line of its docstring."""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
