"""The picture of `tiers_gpu.py`: whole steps by where rows are, beside FBGEMM's caching table, and figures with goals.

python benchmarks/tiers_gpu_plot.py benchmarks/results/DATE_tiers_gpu_h200.json [LATER …] docs/images/tiers_gpu.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from chart import BAR, BESIDE, FLOOR, OTHER, beside_goals, command, figure_of, name_bars, write
from matplotlib.axes import Axes
from tiers_gpu import GOALS

TITLES = {
    "small": "Small, 26 GiB",
    "small_rowwise": "Small, row-wise state",
    "criteo": "Criteo shape, 12 GiB",
    "criteo1tb": "DLRM, Criteo 1 TB, 97 GiB",
}
LABELS = {
    "find_gkv_s": "ids found,\nG/s",
    "insert_gkv_s": "ids taken in,\nG/s",
    "dynamic_vs_fixed": "step with dynamic\nover fixed tables",
    "tiered_warm": "speed with a fifth\nof the rows",
    "tiered_vs_uvm": "FBGEMM's step\nover ours",
}
GAP = 0.45  # between models, in bars


class Bar(NamedTuple):
    label: str
    ms: float
    colour: str
    beside: str = ""


def bars_of(answer: dict[str, Any]) -> list[list[Bar]]:
    """The bars of each model, from the top; those of one that FBGEMM ran too are of the run beside it."""
    uvm = answer.get("uvm", {})
    found = []
    for name, each in {**answer.get("tiered", {}), **uvm}.items():
        title = TITLES.get(name, name)
        hot, ms = each["hot_ms"], each["tiered_ms"]
        bars = [Bar(f"{title}: all rows there", hot, FLOOR), Bar("a fifth there", ms, BAR, f"   {ms / hot:.2f} x")]
        if name in uvm:
            best = min(each["uvm_ms"].values())
            bars.append(Bar("FBGEMM, a fifth cached", best, OTHER, f"   {best / ms:.1f} x ours"))
        found.append(bars)
    if "medium_fp32" in answer:
        batch = answer["medium"]["batch"]
        found.append([Bar(f"Medium in float32, 206 GiB,\nbatch {batch:,}", answer["medium_fp32"], BAR)])
    return found


def times(axes: Axes, answer: dict[str, Any]) -> None:
    """Milliseconds of a step."""
    y, ticks, models = 0.0, {}, bars_of(answer)
    for bars in models:
        for bar in bars:
            axes.barh(y, bar.ms, height=0.8, color=bar.colour, zorder=2)
            axes.annotate(f"{bar.ms:.3g}{bar.beside}", (bar.ms, y), xytext=(4, 0), **BESIDE)
            ticks[y] = bar.label
            y += 1
        y += GAP
    name_bars(axes, ticks)
    axes.set_xlim(0, max((bar.ms for bars in models for bar in bars), default=1) * 1.3)
    axes.set_title("A whole training step, ms: less is better")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, (left, right) = figure_of(1, 2, (14.5, 4.2))
    times(left, answer)
    beside_goals(right, answer, LABELS, GOALS, lambda goal: "{:.3g}")
    right.set_title("Figures as multiples of their goals (red)")
    versions, gpu = answer["versions"], answer["machine"].get("gpu", {})
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "fbgemm_gpu") if name in versions)
    told = f"{gpu.get('name', 'no GPU')}; {named}; batch {answer['batch']:,}, {answer['batches']} batches; "
    figure.supxlabel(told + answer["date"], fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
