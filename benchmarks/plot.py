"""The picture of `data.py`: rows/s beside Arrow, beside the peers, and memory over time.

python benchmarks/plot.py benchmarks/results/data-2026-11-19.json docs/images/data.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart import BAR, FLOOR, GOAL, command, figure_of, rule, write
from matplotlib.axes import Axes

ARROW = {"scalar": 0.88, "ragged": 0.90, "string": 0.70, "shuffle": 0.60}
ARROW_LABELS = {
    "scalar": "scalar",
    "ragged": "ragged",
    "string": "strings,\nhashed",
    "shuffle": "ragged,\nshuffled",
}
PEERS = {
    "vs_torch_dataloader": ("torch\nDataLoader", 20),
    "vs_hf_datasets": ("HF\ndatasets", 5),
    "vs_tfrecord": ("TFRecord,\ntf.data", 5),
    "vs_torch_dataloader_batched": ("DataLoader,\nhand-tuned", None),
}
RSS_GOAL = 1_500
CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # no line runs through a number
NUMBER: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "weight": "bold", "bbox": CLEAR}


def bars(axes: Axes, labels: list[str], values: list[float | None], goals: list[float | None], form: str) -> None:
    """A bar per value with its number on top and its goal as a short line; a missing value is said so."""
    for x, (value, goal) in enumerate(zip(values, goals, strict=True)):
        if value is None:
            axes.annotate(
                "no figure",
                (x, 0.03),
                xycoords=("data", "axes fraction"),
                ha="center",
                color=FLOOR,
                rotation=90,
            )
        else:
            axes.bar(x, value, width=0.62, color=BAR, zorder=2)
            top = goal if goal and value < goal < value * 1.25 else value  # the number clears the goal's line
            axes.annotate(form.format(value), (x, top), xytext=(0, 5), **NUMBER)
        if goal is not None:
            axes.plot([x - 0.42, x + 0.42], [goal, goal], color=GOAL, linewidth=2.5, solid_capstyle="butt", zorder=3)
    axes.plot([], [], color=GOAL, linewidth=2.5, label="goal")
    axes.set_xticks(range(len(labels)), labels)
    axes.tick_params(axis="x", length=0)


def beside_arrow(axes: Axes, answer: dict[str, Any]) -> None:
    values = [answer[f"{name}_vs_arrow"] for name in ARROW]
    bars(axes, [ARROW_LABELS[name] for name in ARROW], values, list(ARROW.values()), "{:.2f}")
    axes.axhline(1.0, color=FLOOR, linewidth=1.5, linestyle=(0, (5, 3)), zorder=1, label="Arrow decode alone")
    axes.set_ylim(0, max([1.0, *(v for v in values if v)]) * 1.38)
    axes.set_title("Rows/s, Arrow's raw decode = 1")
    axes.legend(frameon=False, loc="upper right", ncols=2)


def beside_peers(axes: Axes, answer: dict[str, Any]) -> None:
    shown = {key: peer for key, peer in PEERS.items() if peer[1] or answer.get(key)}
    values = [answer[key] for key in shown]
    axes.set_yscale("log")
    bars(axes, [label for label, _ in shown.values()], values, [goal for _, goal in shown.values()], "{:.1f} x")
    axes.axhline(1.0, color=FLOOR, linewidth=1.5, linestyle=(0, (5, 3)), zorder=1, label="the peer")
    present = [v for v in values if v]
    axes.set_ylim(min([0.7, *(v * 0.7 for v in present)]), max([20, *present]) * 4)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} x")
    axes.set_title("Ragged rows/s, times the peer's (log scale)")
    axes.legend(frameon=False, loc="upper right", ncols=2)


def over_time(axes: Axes, rss: dict[str, Any]) -> None:
    times, sizes = zip(*rss["samples"], strict=True) if rss["samples"] else ([0.0], [rss["peak_rss_mb"]])
    axes.fill_between(times, sizes, color=BAR, alpha=0.25, linewidth=0)
    axes.plot(times, sizes, color=BAR, linewidth=1.8)
    axes.axhline(RSS_GOAL, color=GOAL, linewidth=2.5, label="goal")
    axes.set_ylim(0, max(RSS_GOAL, rss["peak_rss_mb"]) * 1.3)
    axes.set_xlim(0, None)
    axes.set_xlabel("seconds")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axes.set_title(f"Memory (MB), {rss['file_gb']:.1f} GB shuffled; peak {rss['peak_rss_mb']:,.0f}")
    axes.legend(frameon=False, loc="upper right")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    rss = answer["parts"].get("rss")
    figure, panels = figure_of(1, 3 if rss else 2, (14.5 if rss else 10, 4.3))
    beside_arrow(panels[0], answer)
    beside_peers(panels[1], answer)
    if rss:
        over_time(panels[2], rss)
    for axes in panels:
        rule(axes, "y")
    caption = f"{answer['rows']:,} rows, batch {answer['batch']:,}, {answer['threads']} threads, {answer['cpu']}"
    versions = f"torch {answer['versions']['torch']}, pyarrow {answer['versions']['pyarrow']}, {answer['date']}"
    figure.supxlabel(f"{caption}; {versions}; best of {answer['passes']} passes", fontsize=8.5, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
