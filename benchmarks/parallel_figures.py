"""From the answers of all passes to the figures of `parallel.py`.

Noise on a shared machine only adds time, so the best pass counts; `by_median` has the ratios of the median passes.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from turns import Passes

PLANNED = tuple(f"planned_{scheme}_{world}" for world in (1, 2) for scheme in ("replicated", "row", "table"))
NEEDS = {  # the jobs that a part runs
    "scaling": ("ours_1", "ours_2", "ours_2_row", "ours_apart"),
    "torchrec": ("ours_2", "torchrec", "torchrec_pipeline", "torchrec_rewritten", "torchrec_pipeline_rewritten"),
    "collectives": ("count_1", "count_500"),
    "wire": ("wire",),
    "overlap": ("overlap", "overlap_now"),
    "planner": PLANNED,
}
PARTS = tuple(NEEDS)
ONCE = ("count_1", "count_500", "wire")  # counted, not timed: one pass says it all
RATIOS = {  # key: a job of ours, and those of which the fastest is compared with it
    "scaling_2": ("ours_2", ("ours_1",)),
    "scaling_2_row": ("ours_2_row", ("ours_1",)),
    "scaling_2_apart": ("ours_apart", ("ours_1",)),
    "vs_torchrec": ("ours_2", ("torchrec", "torchrec_pipeline")),
    "vs_torchrec_rewritten": ("ours_2", ("torchrec_rewritten", "torchrec_pipeline_rewritten")),
}
PLANNER = ("planner_error", "planner_regret")
GOALS = {  # what the figures must reach: at least, or at most
    "scaling_2": (">=", 1.7),
    "vs_torchrec": (">=", 2.0),
    "collectives_per_step": ("<=", 3.0),
    "wire_bytes_vs_naive": ("<=", 0.25),
    "overlap": (">=", 0.7),
}


def kinds(parts: list[str]) -> list[str]:
    """The jobs of these parts, each once."""
    return list(dict.fromkeys(kind for part in parts for kind in NEEDS[part]))


def figures(passes: Passes) -> dict[str, Any]:
    """All keys that these answers can give."""
    return {**ratios(passes), **counted(passes), **overlapped(passes), **predicted(passes)}


def ratios(passes: Passes) -> dict[str, Any]:
    """Samples/s of ours over those of others, by the best passes and by the median ones."""
    found: dict[str, Any] = {}
    by_median: dict[str, float] = {}
    for key, (ours, names) in RATIOS.items():
        others = [name for name in names if name in passes]
        if ours in passes and others:
            found[key] = max(rates(passes, ours)) / max(max(rates(passes, other)) for other in others)
            by_median[key] = median(rates(passes, ours)) / max(median(rates(passes, other)) for other in others)
    samples = {kind: max(rates(passes, kind)) for kind in passes if "rows_per_s" in passes[kind][0]}
    return {
        **found,
        **({"by_median": by_median} if by_median else {}),
        **({"samples_per_s": samples} if samples else {}),
    }


def rates(passes: Passes, kind: str) -> list[float]:
    return [answer["rows_per_s"] for answer in passes[kind]]


def counted(passes: Passes) -> dict[str, Any]:
    """Collectives of the worse collection, and bytes that are sent over those that would be."""
    found: dict[str, Any] = {}
    calls = {kind: passes[kind][0]["collectives"] for kind in ("count_1", "count_500") if kind in passes}
    if calls:
        found |= {"collectives_per_step": max(calls.values()), "collectives_by_tables": calls}
    if "wire" in passes:
        answer = passes["wire"][0]
        found |= {"wire_bytes_vs_naive": answer["wire_bytes"] / answer["naive_bytes"]}
    return found


def overlapped(passes: Passes) -> dict[str, Any]:
    """The hidden share of exchange time in the fastest pass, and what the lengths of steps say of it.

    Messages that were waited for from start to end would make a step longer by their latency; `overlap_by_steps` is
    the share by which it grew less.
    """
    if "overlap" not in passes:
        return {}
    slow = min(passes["overlap"], key=lambda answer: answer["step_ms"])
    found = {"overlap": slow["hidden"]}
    if "overlap_now" in passes and slow["latency_ms"]:
        quick = min(answer["step_ms"] for answer in passes["overlap_now"])
        latency = slow["messages_per_step"] * slow["latency_ms"]
        found |= {"overlap_by_steps": 1 - (slow["step_ms"] - quick) / latency}
    return found


def predicted(passes: Passes) -> dict[str, Any]:
    """Measured steps of tables alone over predicted ones, by job; `planner_error` is how far the worst is off.

    `planner_regret` is what two ranks lose by the scheme that is predicted to be the best: its measured step over that
    of the best one.
    """
    steps = {kind: min(answer["step_ms"] for answer in passes[kind]) for kind in PLANNED if kind in passes}
    said = {kind: passes[kind][0]["predicted_ms"] for kind in steps}
    found: dict[str, Any] = {}
    if steps:
        over = {kind: steps[kind] / said[kind] for kind in steps}
        found = {"planner_error": max(max(each, 1 / each) for each in over.values()), "measured_over_predicted": over}
    if two := [kind for kind in steps if kind.endswith("_2")]:
        found["planner_regret"] = steps[min(two, key=said.__getitem__)] / min(steps[kind] for kind in two)
    return found


def lines(answer: dict[str, Any]) -> str:
    """The figures beside their goals, for people."""
    shown = []
    for key in (*GOALS, "scaling_2_row", "scaling_2_apart", "vs_torchrec_rewritten", "overlap_by_steps", *PLANNER):
        goal = f"must be {GOALS[key][0]} {GOALS[key][1]:g}" if key in GOALS else ""
        value = f"{answer[key]:,.3f}" if key in answer else "no figure"
        shown.append(f"{key:28}{value:>12}   {goal}".rstrip())
    for kind, rate in answer.get("samples_per_s", {}).items():
        shown.append(f"{kind:28}{rate:>12,.0f}   samples/s")
    return "\n".join(shown)
