"""The picture of `servers.py`: samples/s with and without a network delay, and each figure beside its goal.

python benchmarks/servers_plot.py benchmarks/results/servers-DATE.json docs/images/servers.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart import BAR, BESIDE, FLOOR, beside_goals, command, figure_of, name_bars, write
from matplotlib.axes import Axes
from servers import GOALS

BARS = {
    "sync_near": "synchronous",
    "hybrid_near": "staleness 4",
    "sync_far": "synchronous,\n2 ms away",
    "hybrid_far": "staleness 4,\n2 ms away",
}
SHOWN = ("delay_hidden", "virtual_scale", "vs_valkey", "server_vs_local", "mmap_vs_memory", "longest_pause_s")
LABELS = {key: key.replace("_", " ") for key in SHOWN}


def rates(axes: Axes, answer: dict[str, Any]) -> None:
    """Samples/s of training with servers, near and far."""
    samples = answer["parts"].get("delay", {}).get("samples_per_s", {})
    for y, (kind, _) in enumerate(BARS.items()):
        axes.barh(y, samples.get(kind, 0), height=0.7, color=BAR if "hybrid" in kind else FLOOR, zorder=2)
        axes.annotate(f"{samples.get(kind, 0):,.0f}", (samples.get(kind, 0), y), xytext=(4, 0), **BESIDE)
    name_bars(axes, dict(enumerate(BARS.values())))
    axes.set_xlim(0, max(samples.values(), default=1) * 1.25)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g} k")
    axes.set_title("DLRM, rows on two servers: samples/s")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, (left, right) = figure_of(1, 2, (13.5, 3.8))
    rates(left, answer)
    answered = {key: value for key, value in answer.items() if value is not None}
    beside_goals(right, answered, LABELS, GOALS, lambda goal: "{:.3g}")
    right.set_title("Figures as multiples of their goals (red)")
    machine = answer["machine"]
    caption = (
        f"{machine['cpu']}, {machine['cores']} cores; torch {answer['versions']['torch']}; batch 1,024; loopback; "
    )
    figure.supxlabel(caption + answer["date"], fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
