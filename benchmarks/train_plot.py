"""The picture of `train_cpu.py`: samples/s beside plain PyTorch, and the other figures beside their goals.

python benchmarks/train_plot.py benchmarks/results/train_cpu-DATE.json docs/images/train_cpu.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from plot import BAR, FLOOR, GOAL, STYLE, command, write
from train_figures import GOALS, RATIOS

OTHER = "#b9c2ca"
PEERS = {
    "vs_plain_pytorch": "plain PyTorch,\n52 nn.EmbeddingBag",
    "vs_plain_big_table": "plain PyTorch,\none nn.Embedding",
    "vs_rowwise_dataloader": "plain PyTorch,\nDataLoader of rows",
}
SHARES = {
    "step_overhead": "our Python\nper step",
    "loader_wait": "waiting for data\nper step",
    "save_stall_steps": "a save blocks,\nin steps",
    "restore_vs_disk": "restore,\nof the disk's speed",
}


def rates(axes: Axes, answer: dict[str, Any]) -> None:
    """Bars of samples/s from the top, ours first; the better loader of each peer."""
    samples = answer.get("samples_per_s", {})
    bars = {"hybridrec": samples["ours"]} if "ours" in samples else {}
    for key, label in PEERS.items():
        found = [samples[kind] for kind in RATIOS[key] if kind in samples]
        bars |= {label: max(found)} if found else {}
    for y, (label, rate) in enumerate(bars.items()):
        axes.barh(y, rate, height=0.7, color=OTHER if y else BAR, zorder=2)
        ratio = (
            f"   hybridrec is {bars['hybridrec'] / rate:.1f} x" if label != "hybridrec" and "hybridrec" in bars else ""
        )
        text = f"{rate:,.0f}{ratio}"
        axes.annotate(text, (rate, y), xytext=(4, 0), textcoords="offset points", va="center", weight="bold")
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, max(bars.values(), default=1) * 1.2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g} k")
    axes.set_title("DeepFM, file to updated weights: samples/s")


def shares(axes: Axes, answer: dict[str, Any]) -> None:
    """Each figure as a multiple of its goal, so that one axis serves all; the goal is the red line at 1."""
    shown = {key: label for key, label in SHARES.items() if key in answer}
    for y, key in enumerate(shown):
        sense, goal = GOALS[key]
        at = answer[key] / goal
        axes.barh(y, at, height=0.7, color=BAR, zorder=2)
        form = "{:.1%}" if goal < 0.1 else "{:.2f}"
        text = f"{form.format(answer[key])}  ({'at least' if sense == '>=' else 'at most'} {form.format(goal)})"
        axes.annotate(text, (max(at, 1.0), y), xytext=(6, 0), textcoords="offset points", va="center", weight="bold")
    axes.axvline(1.0, color=GOAL, linewidth=2, zorder=3)
    axes.set_yticks(range(len(shown)), list(shown.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, max([1.0, *(answer[key] / GOALS[key][1] for key in shown)]) * 1.7)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_title("The rest, as multiples of the goal (red)")


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    plt.rcParams.update(STYLE)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 3.6), layout="constrained")
    rates(left, answer)
    shares(right, answer)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#e6e9ec", linewidth=0.8, zorder=0)
        axes.set_axisbelow(True)
    machine, sizes = answer["machine"], f"{answer['rows']:,} rows, batch {answer['batch']:,}"
    caption = f"{machine['cpu']}, {answer['threads']} threads; torch {answer['versions']['torch']}; {sizes}"
    figure.supxlabel(f"{caption}; best of {answer['passes']} passes; {answer['date']}", fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
