"""What the files of all questions share: their options, what a reader needs to judge a figure, how an answer is kept.

A question's file has `measure`, which gives the answer as one object, and ends in `tell`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from machine import machine

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE.parent / "docs" / "images"
CACHE = Path(tempfile.gettempdir()) / "hybridrec-benchmarks"
Parser = argparse.ArgumentParser
Options = argparse.Namespace


# -- options ---------------------------------------------------------------------------------------------------


PARTLY = "keep the answer in results/, with what other parts answered on that day, and its picture"


def options_of(about: str | None, saves: str = "keep the answer in results/ and its picture in docs/") -> Parser:
    """The options that every question has; `about` is its docstring."""
    parser = Parser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object, last line")
    parser.add_argument("--save", action="store_true", help=saves)
    return parser


def add_parts(parser: Parser, parts: tuple[str, ...]) -> None:
    """`--only`: some of the parts of a question; all where none is named."""

    def chosen(text: str) -> list[str]:
        if unknown := sorted(set(text.split(",")) - set(parts)):
            raise argparse.ArgumentTypeError(f"unknown part {', '.join(unknown)}: choose from {', '.join(parts)}")
        return text.split(",")

    parser.add_argument("--only", type=chosen, default=list(parts), help=f"some of {','.join(parts)}")


def add_cache(parser: Parser) -> None:
    """`--cache`: where data are kept from one run to the next."""
    parser.add_argument("--cache", type=Path, default=CACHE)


def add_peers(parser: Parser) -> None:
    """`--venvs` and `--no-install`: where the peers' environments are, and whether they may be made."""
    parser.add_argument("--venvs", type=Path, help="where the peers' environments are kept (default: in the cache)")
    parser.add_argument("--no-install", action="store_true", help="use only peers that are already installed")


def add_smoke(parser: Parser) -> None:
    """`--smoke`, of a question that needs a GPU."""
    parser.add_argument("--smoke", action="store_true", help="small sizes on the CPU, ours alone: figures mean nothing")


def parsed(parser: Parser, small: dict[str, Any] | None = None) -> Options:
    """The options of this call; `small` are the sizes of `--quick` or `--smoke`, where nothing else is said."""
    first = vars(parser.parse_known_args()[0])
    if first.get("quick") or first.get("smoke"):
        parser.set_defaults(**(small or {}))
    args = parser.parse_args()
    if "smoke" in args:
        check_smoke(parser, args)
    if "cache" in args:
        args.cache.mkdir(parents=True, exist_ok=True)
    return args


def check_smoke(parser: Parser, args: Options) -> None:
    """Figures need a GPU, and a smoke run has none."""
    torch = import_module("torch")
    if not args.smoke and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no GPU; --smoke runs on the CPU")
    if args.smoke and args.save:
        parser.error("a smoke run has no figures to save; leave --save or --smoke out")


# -- the answer ------------------------------------------------------------------------------------------------


def about(args: Options, kept: Iterable[str], modules: Iterable[str], **hardware: Any) -> dict[str, Any]:
    """What a reader needs to judge the figures: day, machine, versions, and the options that are `kept`."""
    return {
        "date": today(),
        "machine": {**machine(), **hardware},
        "versions": versions(modules),
        **{name: getattr(args, name) for name in kept},
    }


def today() -> str:
    return datetime.date.today().isoformat()


def versions(modules: Iterable[str]) -> dict[str, str]:
    """Those of Python and of these modules."""
    return {"python": platform.python_version(), **{name: import_module(name).__version__ for name in modules}}


def note(text: str) -> None:
    """Tell whoever waits for the answer how far it is."""
    print(text, file=sys.stderr, flush=True)


def keep(answer: dict[str, Any], name: str, folder: Path = RESULTS) -> Path:
    """The answer as FOLDER/NAME.json."""
    target = folder / f"{name}.json"
    part = target.with_suffix(f".part{os.getpid()}")
    part.write_text(json.dumps(answer, indent=1) + "\n")
    part.replace(target)
    return target


def kept_before(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What an earlier run of the day kept under this name; nothing where there was none."""
    file = folder / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def with_before(answer: dict[str, Any], name: str, divided: Sequence[str], folder: Path = RESULTS) -> dict[str, Any]:
    """The answer with what other parts said in earlier runs of the day; `divided` are keys with a value for each."""
    before = kept_before(name, folder)
    joined = {key: {**before.get(key, {}), **answer[key]} for key in divided if key in answer}
    return {**before, **answer, **joined}


def picture(answer: dict[str, Any], module: str, name: str) -> None:
    """docs/images/NAME.svg, as `module` draws it; without matplotlib, a note."""
    try:
        draw: Callable[[dict[str, Any], Path], None] = import_module(module).draw
    except ModuleNotFoundError as missing:
        note(f"no picture: {missing}")
    else:
        draw(answer, PICTURES / f"{name}.svg")


def tell(
    answer: dict[str, Any], args: Options, lines: Callable[[dict[str, Any]], str], problems: Sequence[str] = ()
) -> None:
    """The answer as its last line, or as `lines` for people; then it fails where there are problems."""
    print(json.dumps(answer) if args.json else lines(answer))
    if problems:
        raise SystemExit("; ".join(problems))
