"""From the answers of all passes to the figures of `train_cpu.py`.

Noise on a shared machine only adds time, so the best pass counts, part by part; `by_median` has the median pass.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from turns import Passes

NEEDS = {  # the jobs that a part runs
    "plain": ("ours", "plain_bags", "plain_bags_inline"),
    "big": ("ours", "plain_big", "plain_big_inline"),
    "rowwise": ("ours", "rowwise"),
    "wait": ("ours",),
    "overhead": ("overhead",),
    "save": ("save_fixed", "save_dynamic"),
}
PARTS = tuple(NEEDS)
RATIOS = {  # key: the peers of which the best counts
    "vs_plain_pytorch": ("plain_bags", "plain_bags_inline"),
    "vs_plain_big_table": ("plain_big", "plain_big_inline"),
    "vs_rowwise_dataloader": ("rowwise",),
}
GOALS = {  # what the figures must reach: at least, or at most
    "vs_plain_pytorch": (">=", 2.5),
    "step_overhead": ("<=", 0.05),
    "loader_wait": ("<=", 0.05),
    "save_stall_steps": ("<=", 1.0),
    "restore_vs_disk": (">=", 0.5),
}


def kinds(parts: list[str]) -> list[str]:
    """The jobs of these parts, each once."""
    return list(dict.fromkeys(kind for part in parts for kind in NEEDS[part]))


def figures(passes: Passes) -> dict[str, Any]:
    """All keys that these answers can give."""
    found = ratios(passes)
    if "ours" in passes:
        best = max(passes["ours"], key=lambda answer: answer["rows_per_s"])
        found |= {"loader_wait": best["loader_wait"]}
    if "overhead" in passes:
        found |= {"step_overhead": overhead(passes["overhead"])}
    stores = {kind.removeprefix("save_"): answers for kind, answers in passes.items() if kind.startswith("save_")}
    if stores:
        stalls = {store: min(a["save_stall_steps"] for a in answers) for store, answers in stores.items()}
        restores = {store: max(a["restore_vs_disk"] for a in answers) for store, answers in stores.items()}
        slow = {store: min(a["slowdown"] for a in answers) for store, answers in stores.items()}
        found |= {"save_stall_steps": max(stalls.values()), "restore_vs_disk": min(restores.values())}
        found |= {"by_store": {"save_stall_steps": stalls, "slowdown_while_saving": slow, "restore_vs_disk": restores}}
    return found


def ratios(passes: Passes) -> dict[str, Any]:
    """Our samples/s over those of each peer, by the best passes and by the median ones."""
    found: dict[str, Any] = {}
    by_median: dict[str, float] = {}
    for key, names in RATIOS.items():
        peers = [name for name in names if name in passes]
        if "ours" in passes and peers:
            found[key] = max(rates(passes, "ours")) / max(max(rates(passes, peer)) for peer in peers)
            by_median[key] = median(rates(passes, "ours")) / max(median(rates(passes, peer)) for peer in peers)
    samples = {kind: max(rates(passes, kind)) for kind in passes if "rows_per_s" in passes[kind][0]}
    return {
        **found,
        **({"by_median": by_median} if by_median else {}),
        **({"samples_per_s": samples} if samples else {}),
    }


def rates(passes: Passes, kind: str) -> list[float]:
    return [answer["rows_per_s"] for answer in passes[kind]]


def overhead(answers: list[dict[str, Any]]) -> float:
    """The share by the best of each time: those of one row are short, and noise in one would be taken for another."""
    ours, net, given, full = (
        min(answer[name] for answer in answers) for name in ("ours_1_ms", "torch_1_ms", "handover_ms", "full_ms")
    )
    return (ours - net + given) / full


def lines(answer: dict[str, Any]) -> str:
    """The figures beside their goals, for people."""
    keys = ["vs_plain_pytorch", "vs_plain_big_table", "vs_rowwise_dataloader", *list(GOALS)[1:]]
    shown = []
    for key in keys:
        goal = f"must be {GOALS[key][0]} {GOALS[key][1]}" if key in GOALS else ""
        value = f"{answer[key]:,.3f}" if key in answer else "no figure"
        shown.append(f"{key:24}{value:>12}   {goal}".rstrip())
    for kind, rate in answer.get("samples_per_s", {}).items():
        shown.append(f"{kind:24}{rate:>12,.0f}   samples/s")
    return "\n".join(shown)
