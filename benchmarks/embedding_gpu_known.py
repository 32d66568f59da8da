"""Which variants an earlier answer of `embedding_gpu.py` knows to be slower or impossible: `--known FILE` of it."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COPY = "step eager"  # ours has its time from "step_eager eager": there is nothing to leave out


@dataclass(frozen=True)
class Known:
    """An earlier answer: the path that it was read from, and its objects by model."""

    path: Path
    models: dict[str, dict[str, Any]]

    def left_out(self, model: str, sides: Iterable[str]) -> dict[str, list[str]]:
        """By side, variants as `Task.skip` names them; none of what is not known."""
        found = self.models.get(model, {"passes_ms": {}})
        failed = found.get("failures", {})
        return {
            side: without_chance(
                found["passes_ms"].get(side, {}),
                [what.removeprefix(f"{side} ") for what in failed if what.startswith(f"{side} ")],
            )
            for side in sides
        }


def known_from(text: str) -> Known:
    """The answer in a file, as an option of the command line."""
    try:
        answer = json.loads(Path(text).read_text())
    except OSError as reason:
        raise ArgumentTypeError(f"cannot read {text}: {reason.strerror}") from reason
    except ValueError as reason:
        raise ArgumentTypeError(f"{text} is no JSON: {reason}") from reason
    if not isinstance(answer, dict):
        raise ArgumentTypeError(f"{text} is no answer of a benchmark: give a file of benchmarks/results")
    models = {name: each for name, each in answer.items() if isinstance(each, dict) and "passes_ms" in each}
    return Known(Path(text), models)


def without_chance(parts: dict[str, dict[str, list[float]]], failed: Iterable[str]) -> list[str]:
    """Variants that failed, or whose best pass was slower than that of the fastest of their part, which stays.

    A part in which nothing has a time is tried whole.
    """
    found: set[str] = set()
    fastest: set[str] = set()
    for part, variants in parts.items():
        best = {f"{part} {variant}": min(times) for variant, times in variants.items()}
        fastest |= {what for what, ms in best.items() if ms == min(best.values())}
        found |= best.keys()
    found |= {what for what in failed if what.partition(" ")[0] in parts}  # of the parts alone: profiles fail too
    return sorted(found - fastest - {COPY})
