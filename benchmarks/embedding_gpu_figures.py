"""From the answers of all passes to the figures of `embedding_gpu.py`, model by model.

The fastest variant of the best pass counts, on both sides; every pass of every variant is kept.
"""

from __future__ import annotations

from typing import Any

PARTS = ("fwd", "fwd_bwd", "step", "step_eager")
RATIOS = {  # key: our part, the peer's part
    "fwd_vs_fbgemm": ("fwd", "fwd"),
    "fwd_bwd_vs_fbgemm": ("fwd_bwd", "fwd_bwd"),
    "step_vs_fbgemm": ("step", "step"),
    "step_vs_fbgemm_eager": ("step", "step_eager"),
}
GOALS: dict[str, dict[str, float]] = {
    "tiny": dict(zip(RATIOS, (6.0, 3.0, 2.0, 4.0), strict=True)),
    "small": dict(zip(RATIOS, (4.0, 2.0, 1.7, 3.0), strict=True)),
    "criteo": dict(zip(RATIOS, (2.0, 1.4, 1.2, 3.0), strict=True)),
    "medium": {"medium_vs_fbgemm": 1.8, "medium_ms": 32.0},
}
AT_MOST = ("medium_ms",)
Answers = dict[str, list[dict[str, Any]]]  # side: one answer per pass


def figures(name: str, answers: Answers) -> dict[str, Any]:
    """The object of one model."""
    ms = {side: best(found) for side, found in answers.items() if found}
    ours, peer = ms.get("ours", {}), ms.get("fbgemm", {})
    found: dict[str, Any] = {
        key: peer[theirs] / ours[mine] for key, (mine, theirs) in RATIOS.items() if mine in ours and theirs in peer
    }
    if name == "medium":
        found |= {"medium_vs_fbgemm": found["step_vs_fbgemm"]} if "step_vs_fbgemm" in found else {}
        found |= {"medium_ms": ours["step"]} if "step" in ours else {}
    goals = GOALS[name]
    return {
        **found,
        "goals": goals,
        "met": {key: met(key, found[key], goal) for key, goal in goals.items() if key in found},
        "ms": ms,
        **floors(answers.get("ours", []), ours),
        "passes_ms": {side: passes(each) for side, each in answers.items()},
        **about(answers),
    }


def met(key: str, value: float, goal: float) -> bool:
    return value <= goal if key in AT_MOST else value >= goal


def best(answers: list[dict[str, Any]]) -> dict[str, float]:
    """The fastest variant of each part, over all passes."""
    found: dict[str, float] = {}
    for part in PARTS:
        times = [ms for answer in answers for ms in answer["ms"].get(part, {}).values()]
        found |= {part: min(times)} if times else {}
    return found


def passes(answers: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Part, variant, and its time in every pass."""
    found: dict[str, dict[str, list[float]]] = {}
    for answer in answers:
        for part, variants in answer["ms"].items():
            for variant, ms in variants.items():
                found.setdefault(part, {}).setdefault(variant, []).append(round(ms, 4))
    return found


def floors(answers: list[dict[str, Any]], ours: dict[str, float]) -> dict[str, Any]:
    """The bytes of a step at copy speed, and which share of our time that is; layers have no floor here."""
    if not answers:
        return {}
    speed, moved = max(answer["copy_gb_per_s"] for answer in answers), answers[0]["floor"]
    floor = {part: moved[part] / speed / 1e6 for part in ("fwd", "fwd_bwd")}
    of_part = {"fwd": "fwd", "fwd_bwd": "fwd_bwd", "step": "fwd_bwd", "step_eager": "fwd_bwd"}
    return {
        "copy_gb_per_s": speed,
        "per_step": moved,
        "floor_ms": floor,
        "floor_share": {part: floor[of_part[part]] / ms for part, ms in ours.items()},
    }


def about(answers: Answers) -> dict[str, Any]:
    """Memory, batches, kernels, and what failed."""
    found: dict[str, Any] = {"peak_gib": {}, "batches": {}, "failures": {}}
    for side, each in answers.items():
        peaks = [answer["peak_gib"] for answer in each if "peak_gib" in answer]
        found["peak_gib"] |= {side: max(peaks)} if peaks else {}
        found["batches"] |= {side: each[0]["batches"]} if each else {}
        for answer in each:
            found["failures"] |= {f"{side} {what}": why for what, why in answer["failures"].items()}
            found["failures"] |= {f"{side} ended early": answer["crash"]} if "crash" in answer else {}
            found |= {"kernels_us": answer["kernels_us"]} if "kernels_us" in answer else {}
    sums = {answer["ids_sum"] for each in answers.values() for answer in each}
    same = len({answer["batches"] for each in answers.values() for answer in each}) == 1
    return {**found, "same_ids": len(sums) == 1 if same else None}  # with fewer batches, their sum is another


def lines(answer: dict[str, Any]) -> str:
    """The figures beside their goals, for people."""
    shown = [f"no {what}: {why}" for what, why in answer["absent"].items()]
    for name in GOALS:
        for key, value in figures_of(answer.get(name, {})).items():
            goal = GOALS[name].get(key)
            sign = "<=" if key in AT_MOST else ">="
            shown.append(f"{name:8}{key:24}{value:10.3f}" + (f"   must be {sign} {goal}" if goal else ""))
        for side, ms in answer.get(name, {}).get("ms", {}).items():
            shown.append(f"{name:8}{side:8}" + "  ".join(f"{part} {each:.3f} ms" for part, each in ms.items()))
        shown += [f"{name:8}{what}: {why}" for what, why in answer.get(name, {}).get("failures", {}).items()]
        for side, left in answer.get(name, {}).get("left_out", {}).items():
            shown.append(f"{name:8}{side:8}left out, by {answer[name]['known']}: {'; '.join(left) or 'nothing'}")
    return "\n".join(shown)


def figures_of(model: dict[str, Any]) -> dict[str, float]:
    """The single numbers of a model's object that have a name in the goals or ratios."""
    keys = [*RATIOS, *GOALS["medium"]]
    return {key: model[key] for key in keys if key in model}
