"""The picture of `parallel.py`: samples/s of one rank and of two beside TorchRec, and what is exchanged.

python benchmarks/parallel_plot.py benchmarks/results/parallel-DATE.json docs/images/parallel.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from parallel_figures import GOALS
from plot import BAR, FLOOR, GOAL, STYLE, command, write

OTHER, LIGHT = "#b9c2ca", "#a9cbe6"
BARS = {
    "ours_1": "hybridrec, 1 rank",
    "ours_2": "hybridrec, 2 ranks",
    "ours_2_row": "the same, all tables\nrow-wise",
    "ours_apart": "2 processes that\ndo not talk",
    "torchrec": "TorchRec, 2 ranks",
    "torchrec_pipeline": "TorchRec, 2 ranks,\npipelined",
    "torchrec_pipeline_rewritten": "the same, its pairs\nrewritten",
}
COLOURS = {"ours_1": LIGHT, "ours_2": BAR, "ours_2_row": BAR, "ours_apart": FLOOR}
SHARES = {
    "collectives_per_step": "collectives\nper step",
    "wire_bytes_vs_naive": "bytes sent,\nof the naive way",
    "overlap": "exchange time\nthat is hidden",
}


def rates(axes: Axes, answer: dict[str, Any]) -> None:
    """Bars of samples/s from the top; beside each, how ours on two ranks compares."""
    samples = answer.get("samples_per_s", {})
    shown = {kind: label for kind, label in BARS.items() if kind in samples}
    ours = samples.get("ours_2")
    for y, kind in enumerate(shown):
        rate = samples[kind]
        axes.barh(y, rate, height=0.7, color=COLOURS.get(kind, OTHER), zorder=2)
        ratio = f"   2 ranks of ours: {ours / rate:.2f} x" if ours and kind != "ours_2" else ""
        place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "weight": "bold"}
        axes.annotate(f"{rate:,.0f}{ratio}", (rate, y), **place)
    axes.set_yticks(range(len(shown)), list(shown.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, max(samples.values(), default=1) * 1.6)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g} k")
    axes.set_title("DLRM, a thread each: samples/s")


def shares(axes: Axes, answer: dict[str, Any]) -> None:
    """Each figure as a multiple of its goal, so that one axis serves all; the goal is the red line at 1."""
    shown = {key: label for key, label in SHARES.items() if key in answer}
    for y, key in enumerate(shown):
        sense, goal = GOALS[key]
        at = answer[key] / goal
        axes.barh(y, at, height=0.7, color=BAR, zorder=2)
        text = f"{answer[key]:.3g}  ({'at least' if sense == '>=' else 'at most'} {goal:g})"
        axes.annotate(text, (max(at, 1.0), y), xytext=(6, 0), textcoords="offset points", va="center", weight="bold")
    axes.axvline(1.0, color=GOAL, linewidth=2, zorder=3)
    axes.set_yticks(range(len(shown)), list(shown.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, max([1.0, *(answer[key] / GOALS[key][1] for key in shown)]) * 1.7)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_title("The exchange, as multiples of the goal (red)")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    plt.rcParams.update(STYLE)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 3.8), layout="constrained", width_ratios=(3, 2))
    rates(left, answer)
    shares(right, answer)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#e6e9ec", linewidth=0.8, zorder=0)
        axes.set_axisbelow(True)
    machine, sizes = answer["machine"], f"{answer['tables']} tables of {answer['rows']:,} rows"
    caption = f"{machine['cpu']}, {machine['cores']} cores; torch {answer['versions']['torch']}; {sizes}"
    caption += f", batch {answer['batch']:,} per rank; best of {answer['passes']} passes; {answer['date']}"
    figure.supxlabel(caption, fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
