"""The picture of `embedding_cpu.py`: milliseconds per step in each setting, ours beside the peers.

python benchmarks/embedding_plot.py benchmarks/results/embedding_cpu-DATE.json docs/images/embedding_cpu.svg
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from chart import BAR, BESIDE, FLOOR, GOAL, OTHER, command, name_bars, panels_of, write
from embedding_table import caption
from embedding_workload import Setting
from matplotlib.axes import Axes

GROUPS = {
    "row-wise Adagrad": {
        "ours_rowwise_adagrad": "hybridrec",
        "fbgemm_rowwise_adagrad": "FBGEMM",
        "torchrec_rowwise_adagrad": "TorchRec",
    },
    "Adagrad": {"ours_adagrad": "hybridrec", "fbgemm_adagrad": "FBGEMM", "nn_adagrad": "torch.nn"},
}
GAP = 0.7  # between the two groups, in bars


def title(name: str) -> str:
    setting = Setting.parse(name)
    ids = "1 id per bag" if setting.hot == 1 else f"0 to {2 * setting.hot} ids per bag"
    return f"{setting.dim} columns, {ids}"


def panel(axes: Axes, jobs: dict[str, Any], floors: dict[str, Any]) -> None:
    """Bars of one setting, from the top; the floor of each optimizer is a line across its group."""
    y, ticks, widest = 0.0, {}, 0.0
    for group, members in GROUPS.items():
        first = y
        for job in [job for job in members if job in jobs]:
            ms = jobs[job]["step_ms"]
            widest = max(widest, ms)
            axes.barh(y, ms, height=0.72, color=BAR if job.startswith("ours") else OTHER, zorder=2)
            axes.annotate(f"{ms:.3g}", (ms, y), xytext=(4, 0), **BESIDE)
            ticks[y] = f"{members[job]}, {group}"
            y += 1
        floor = floors.get(group.lower().replace("-", "").replace(" ", "_"))
        if floor and y > first:
            x = floor["floor_ms"]
            axes.plot([x, x], [first - 0.45, y - 0.55], color=GOAL, linewidth=2, zorder=3)
        y += GAP if y > first else 0
    name_bars(axes, ticks)
    axes.set_xlim(0, widest * 1.15 or 1)


def draw(answer: dict[str, Any], target: Path) -> None:
    """Write the chart; the file's ending chooses PNG or SVG."""
    figure, panels = panels_of(list(answer["parts"]), 6.4, 2.7)
    for axes, name in panels:
        panel(axes, answer["parts"][name], answer.get("roofline", {}).get(name, {}))
        axes.set_title(title(name))
    figure.suptitle("Milliseconds per step; less is better. Red: the bytes of a step at copy speed", fontsize=11)
    figure.supxlabel(textwrap.fill(caption(answer), 85 * min(2, len(answer["parts"]))), fontsize=8, color=FLOOR)
    write(figure, target)


if __name__ == "__main__":
    command(draw, __doc__)
