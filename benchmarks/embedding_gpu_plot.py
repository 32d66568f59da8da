"""The picture of `embedding_gpu.py`: milliseconds of lookups, updates and whole steps, ours beside FBGEMM.

python benchmarks/embedding_gpu_plot.py benchmarks/results/DATE_gpu_h200.json [LATER …] docs/images/embedding_gpu.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart import BAR, BESIDE, FLOOR, GOAL, OTHER, command, name_bars, panels_of, write
from embedding_gpu_figures import GOALS
from matplotlib.axes import Axes

TITLES = {
    "tiny": "Tiny: 55 tables, 4 GiB",
    "small": "Small: 107 tables, 26 GiB",
    "criteo": "Criteo shape: 26 tables of 1 M rows of 128",
    "medium": "Medium: 311 tables, 103 GiB in float16",
}
ROWS = {  # label of a group of bars: part of ours, part of FBGEMM
    "lookup": ("fwd", "fwd"),
    "lookup, backward, update": ("fwd_bwd", "fwd_bwd"),
    "whole training step": ("step", "step"),
    "… FBGEMM as in its examples": (None, "step_eager"),
}
GAP = 0.45  # between groups, in bars


def bars_of(model: dict[str, Any]) -> list[tuple[str, str, float, str]]:
    """Group, side, milliseconds and the part, from the top."""
    found = []
    for label, parts in ROWS.items():
        for side, part in zip(("ours", "fbgemm"), parts, strict=True):
            ms = model["ms"].get(side, {}).get(part)
            found += [(label, side, ms, part)] if ms is not None else []
    return found


def panel(axes: Axes, model: dict[str, Any]) -> None:
    """Bars of one model; FBGEMM's say how many times ours they are, and the floor of ours is a red line."""
    y, before, ticks, ours = 0.0, "", {}, model["ms"].get("ours", {})
    shown = bars_of(model)
    for label, side, ms, part in shown:
        y += GAP if before and label != before and not label.startswith("…") else 0
        own = ours.get("step" if part == "step_eager" else part)
        ratio = f"   {ms / own:.1f} x" if side == "fbgemm" and own else ""
        axes.barh(y, ms, height=0.8, color=BAR if side == "ours" else OTHER, zorder=2)
        axes.annotate(f"{ms:.3g}{ratio}", (ms, y), xytext=(4, 0), **BESIDE)
        floor = model.get("floor_ms", {}).get(part)
        if side == "ours" and floor:
            axes.plot([floor, floor], [y - 0.4, y + 0.4], color=GOAL, linewidth=2, zorder=3)
        ticks[y] = f"{label}, {'hybridrec' if side == 'ours' else 'FBGEMM'}" if label[0] != "…" else label
        y, before = y + 1, label
    name_bars(axes, ticks)
    axes.set_xlim(0, max((ms for _, _, ms, _ in shown), default=1) * 1.3)


def caption(answer: dict[str, Any]) -> str:
    versions, gpu = answer["versions"], answer["machine"].get("gpu", {})
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "fbgemm_gpu") if name in versions)
    passes = f"{answer['passes']} pass{'es' * (answer['passes'] > 1)}, medians of {answer['steps']} steps"
    return f"{gpu.get('name', 'no GPU')}; {named}; batch {answer['batch']:,}; {passes}; {answer['date']}"


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, panels = panels_of([name for name in GOALS if name in answer], 7.2, 2.9)
    for axes, name in panels:
        panel(axes, answer[name])
        axes.set_title(TITLES[name])
    told = "Milliseconds; less is better. Red: the bytes of the part at copy speed"
    figure.suptitle(told, fontsize=11)
    figure.supxlabel(caption(answer), fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
