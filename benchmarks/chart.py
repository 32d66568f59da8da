"""What the pictures of all answers share: colours and style, panels, bars beside goals, and the command that draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, BAR, OTHER, FLOOR, GOAL = "#22303c", "#2f7ebc", "#b9c2ca", "#8a949e", "#d1495b"
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "weight": "bold"}  # a number beside its bar
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": FLOOR,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "hybridrec",  # the same answer gives the same file
}


def figure_of(lines: int, columns: int, size: tuple[float, float], **more: Any) -> tuple[Figure, list[Axes]]:
    """A figure in our style and its panels, line after line."""
    plt.rcParams.update(STYLE)
    figure, panels = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False, **more)
    return figure, list(panels.flat)


def panels_of(names: list[str], width: float, height: float) -> tuple[Figure, Iterator[tuple[Axes, str]]]:
    """A figure with a panel for each name, two in a line."""
    columns = min(2, len(names))
    lines = -(-len(names) // columns)
    figure, panels = figure_of(lines, columns, (width * columns, height * lines + 0.6))
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return figure, zip(panels, names, strict=False)


def rule(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Pale lines behind the bars, at the numbers of an axis."""
    axes.grid(axis=axis, color="#e6e9ec", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)


def name_bars(axes: Axes, labels: dict[float, str]) -> None:
    """Names of bars that lie, by where they are, from the top."""
    axes.set_yticks(list(labels), list(labels.values()))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    rule(axes, "x")


def beside_goals(
    axes: Axes,
    answer: dict[str, Any],
    labels: dict[str, str],
    goals: dict[str, tuple[str, float]],
    form: Callable[[float], str],
) -> None:
    """Each figure as a multiple of its goal, so that one axis serves all; the goal is the red line at 1."""
    shown = {key: label for key, label in labels.items() if key in answer}
    for y, key in enumerate(shown):
        sense, goal = goals[key]
        at, number = answer[key] / goal, form(goal)
        axes.barh(y, at, height=0.7, color=BAR, zorder=2)
        text = f"{number.format(answer[key])}  ({'at least' if sense == '>=' else 'at most'} {number.format(goal)})"
        axes.annotate(text, (max(at, 1.0), y), xytext=(6, 0), **BESIDE)
    axes.axvline(1.0, color=GOAL, linewidth=2, zorder=3)
    name_bars(axes, dict(enumerate(shown.values())))
    axes.set_xlim(0, max([1.0, *(answer[key] / goals[key][1] for key in shown)]) * 1.7)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")


def write(figure: Figure, target: Path) -> None:
    """Keep the figure; the file's ending chooses PNG or SVG."""
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    plt.close(figure)


def command(draw: Callable[[dict[str, Any], Path], None], about: str | None) -> None:
    """Draw the answer in the file of the first argument into that of the last; with several, what the later one has."""
    if len(sys.argv) < 3:
        raise SystemExit(about)
    draw(joined([json.loads(Path(file).read_text()) for file in sys.argv[1:-1]]), Path(sys.argv[-1]))


def joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answers of several days as one, in which a later one comes before an earlier; it tells all days.

    >>> joined([{"date": "2026-11-16", "a": 1, "b": 2}, {"date": "2026-11-18", "a": 3}])
    {'date': '2026-11-16, 2026-11-18', 'a': 3, 'b': 2, 'versions': {}}
    """
    found = {name: part for answer in answers for name, part in answer.items()}
    versions = {name: version for answer in answers for name, version in answer.get("versions", {}).items()}
    return {**found, "versions": versions, "date": ", ".join(answer["date"] for answer in answers)}
