"""The picture of `train_cpu.py`: samples/s beside plain PyTorch, and the other figures beside their goals.

python benchmarks/train_plot.py benchmarks/results/train_cpu-DATE.json docs/images/train_cpu.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chart import BAR, BESIDE, FLOOR, OTHER, beside_goals, command, figure_of, name_bars, write
from matplotlib.axes import Axes
from train_figures import GOALS, RATIOS

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
        axes.annotate(f"{rate:,.0f}{ratio}", (rate, y), xytext=(4, 0), **BESIDE)
    name_bars(axes, dict(enumerate(bars)))
    axes.set_xlim(0, max(bars.values(), default=1) * 1.2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g} k")
    axes.set_title("DeepFM, file to updated weights: samples/s")


def form(goal: float) -> str:
    return "{:.1%}" if goal < 0.1 else "{:.2f}"


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, (left, right) = figure_of(1, 2, (13.5, 3.6))
    rates(left, answer)
    beside_goals(right, answer, SHARES, GOALS, form)
    right.set_title("The rest, as multiples of the goal (red)")
    machine, sizes = answer["machine"], f"{answer['rows']:,} rows, batch {answer['batch']:,}"
    caption = f"{machine['cpu']}, {answer['threads']} threads; torch {answer['versions']['torch']}; {sizes}"
    figure.supxlabel(f"{caption}; best of {answer['passes']} passes; {answer['date']}", fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
