"""The picture of `parallel.py`: samples/s of one rank and of two beside TorchRec, and what is exchanged.

python benchmarks/parallel_plot.py benchmarks/results/parallel-DATE.json docs/images/parallel.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart import BAR, BESIDE, FLOOR, OTHER, beside_goals, command, figure_of, name_bars, write
from matplotlib.axes import Axes
from parallel_figures import GOALS

LIGHT = "#a9cbe6"
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
        axes.annotate(f"{rate:,.0f}{ratio}", (rate, y), xytext=(4, 0), **BESIDE)
    name_bars(axes, dict(enumerate(shown.values())))
    axes.set_xlim(0, max(samples.values(), default=1) * 1.6)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g} k")
    axes.set_title("DLRM, a thread each: samples/s")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, (left, right) = figure_of(1, 2, (13.5, 3.8), width_ratios=(3, 2))
    rates(left, answer)
    beside_goals(right, answer, SHARES, GOALS, lambda goal: "{:.3g}")
    right.set_title("The exchange, as multiples of the goal (red)")
    machine, sizes = answer["machine"], f"{answer['tables']} tables of {answer['rows']:,} rows"
    caption = f"{machine['cpu']}, {machine['cores']} cores; torch {answer['versions']['torch']}; {sizes}"
    caption += f", batch {answer['batch']:,} per rank; best of {answer['passes']} passes; {answer['date']}"
    figure.supxlabel(caption, fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
