"""The peer's side of the conversation with `data.py`: a line in, a line out, so that passes can alternate.

The peer prepares its files, says what it is, then runs one pass over the data for every line it is sent.
Answers are lines that start with `@`; anything else a library prints is ignored.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """What every peer is asked to read, and how."""

    path: Path
    cache: Path
    batch: int
    threads: int
    label: str


def serve(
    prepare: Callable[[Request], Iterable[Any]], count: Callable[[Any, str], int], versions: dict[str, str]
) -> None:
    """Answer requests until stdin ends; `count(batch, label)` is the number of rows of a batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("label")
    known, _ = parser.parse_known_args()
    request = Request(**vars(known))
    batches = prepare(request)
    _say({"ready": versions})
    for _ in sys.stdin:
        start, rows = time.perf_counter(), 0
        for batch in batches:
            rows += count(batch, request.label)
        _say({"rows": rows, "seconds": time.perf_counter() - start})


def _say(answer: dict[str, Any]) -> None:
    print("@" + json.dumps(answer), flush=True)
