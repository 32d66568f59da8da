"""The calibration plot: how often the thing happened, by how likely the model said it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybridrec.train.report import numbers
from hybridrec.train.report.chart import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axes, frame
from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Run
from hybridrec.train.report.scale import Scale
from hybridrec.train.report.series import number

HEIGHT, STRIP = 300, 34  # the strip below shows how many predictions each bin has
Z = 1.96  # 95 % of a normal distribution


@dataclass(frozen=True)
class Bin:
    """Predictions from `low` to `high`: their mean, the share of positives among them, and how many there are."""

    predicted: float
    observed: float
    count: float
    low: float
    high: float


def calibration(run: Run) -> Markup:
    """A plot per label, of the newest record that has them."""
    held = [record for record in run.of("valid", "final") if isinstance(record.get("calibration_curve"), dict)]
    if not held:
        return Markup("")
    found = held[-1]["calibration_curve"]
    by_label = {"": found} if "predicted" in found else found
    curves = {str(label): bins for label, curve in by_label.items() if (bins := read(curve))}
    if not curves:
        return Markup("")
    lead = element(
        "p",
        f"Predictions in bins, at step {numbers.whole(held[-1]['step'])}: the share that came true against the mean "
        "prediction. On the dashed line the two agree; upright bars are 95 % intervals. "
        "Below: where the predictions lie.",
        class_="lead",
    )
    plots = [
        plot
        for i, (label, bins) in enumerate(curves.items())
        for plot in (_plot(label, bins, i), _gaps(label, bins, i))
    ]
    return element(
        "section",
        element("h2", "Calibration"),
        lead,
        _summary(curves),
        element("div", *plots, class_="charts"),
        id="calibration",
    )


def read(curve: Any) -> list[Bin]:
    """The bins of a curve that hold something; none where it is not as agreed.

    >>> read({"edges": [0, 0.5, 1], "predicted": [0.1, None], "observed": [0.2, None], "count": [10, 0]}), read("?")
    ([Bin(predicted=0.1, observed=0.2, count=10.0, low=0.0, high=0.5)], [])
    """
    names = ("predicted", "observed", "count", "edges")
    if not isinstance(curve, dict) or not all(isinstance(curve.get(name), list) for name in names):
        return []
    predicted, observed, count, edges = (curve[name] for name in names)
    bins = []
    for cells in zip(predicted, observed, count, edges, edges[1:], strict=False):
        values = [v for cell in cells if (v := number(cell)) is not None and math.isfinite(v)]
        if len(values) == len(cells) and values[2] > 0:
            bins.append(Bin(*values))
    return bins


def interval(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share seen in `count` draws.

    >>> [round(x, 3) for x in interval(0.5, 100)]
    [0.404, 0.596]
    """
    share = min(max(share, 0.0), 1.0)
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z / (1 + Z * Z / count) * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return middle - half, middle + half


def _plot(label: str, bins: Sequence[Bin], colour: int) -> Markup:
    top = min(1.05, 1.08 * max(max(b.predicted, b.observed) for b in bins)) or 1.0
    axes = Axes(Scale(0, top, LEFT + 4, WIDTH - RIGHT), Scale(0, top, HEIGHT - BOTTOM, TOP), "")
    diagonal = element("line", x1=axes.x(0), y1=axes.y(0), x2=axes.x(top), y2=axes.y(top), class_="ideal")
    line = element(
        "path", d="M" + "L".join(f"{axes.x(b.predicted):.1f} {axes.y(b.observed):.1f}" for b in bins), class_="line"
    )
    marks = element("g", line, *(_bin(b, axes) for b in bins), class_=f"c{colour % 8}")
    canvas = element(
        "svg", frame(axes, HEIGHT), diagonal, marks, _strip(bins, axes, colour),
        viewBox=f"0 0 {WIDTH} {HEIGHT + STRIP}", role="img", aria_label=f"Calibration of {label or 'the model'}",
    )  # fmt: skip
    said = element("span", "observed by predicted", class_="legend")
    return element("figure", element("figcaption", element("b", label or "Observed"), said), canvas, class_="chart")


def _gaps(label: str, bins: Sequence[Bin], colour: int) -> Markup:
    """The same bins as distances from the dashed line, where small ones can be seen."""
    right = min(1.05, 1.08 * max(b.predicted for b in bins)) or 1.0
    large = [abs(b.observed - b.predicted) for b in bins if b.count >= max(x.count for x in bins) / 1000]
    half = 1.5 * max(large) or 0.01
    axes = Axes(Scale(0, right, LEFT + 4, WIDTH - RIGHT), Scale(-half, half, HEIGHT + STRIP - BOTTOM, TOP), "")
    zero = element("line", x1=axes.x(0), x2=axes.x(right), y1=axes.y(0), y2=axes.y(0), class_="ideal")
    marks = element("g", *(_bin(b, axes, less=b.predicted) for b in bins), class_=f"c{colour % 8}")
    canvas = element(
        "svg", frame(axes, HEIGHT + STRIP), zero, marks, viewBox=f"0 0 {WIDTH} {HEIGHT + STRIP}", role="img",
        aria_label=f"Observed less predicted of {label or 'the model'}",
    )  # fmt: skip
    said = element("span", "observed − predicted", class_="legend")  # noqa: RUF001  a minus sign
    return element("figure", element("figcaption", element("b", label or "Error"), said), canvas, class_="chart")


def _summary(curves: dict[str, list[Bin]]) -> Markup:
    names = ("Label", "Mean predicted", "Mean observed", "Ratio", "Expected error", "Rows")
    head = element("tr", *(element("th", name, class_="n" if i else None) for i, name in enumerate(names)))
    rows = []
    for i, (label, bins) in enumerate(curves.items()):
        chip = element("i", class_=f"chip c{i % 8}")
        cells = [element("td", said, class_="n") for said in _sums(bins)]
        rows.append(element("tr", element("th", chip, label or "all", scope="row"), *cells))
    table = element("table", element("thead", head), element("tbody", *rows))
    return element("div", table, class_="scroll card gap")


def _sums(bins: Sequence[Bin]) -> list[str]:
    total = sum(b.count for b in bins)
    predicted = sum(b.predicted * b.count for b in bins) / total
    observed = sum(b.observed * b.count for b in bins) / total
    error = sum(abs(b.predicted - b.observed) * b.count for b in bins) / total
    ratio = predicted / observed if observed else math.nan
    return [*(numbers.plain(v) for v in (predicted, observed, ratio, error)), numbers.whole(total)]


def _bin(b: Bin, axes: Axes, less: float = 0.0) -> Markup:
    low, high = (_within(value - less, axes) for value in interval(b.observed, b.count))
    x = axes.x(b.predicted)
    said = (
        f"predicted {numbers.plain(b.predicted)}, observed {numbers.plain(b.observed)}, {numbers.whole(b.count)} rows"
    )
    whisker = element("line", x1=x, x2=x, y1=low, y2=high, class_="whisker")
    beyond = not axes.y.low <= b.observed - less <= axes.y.high
    dot = element("circle", element("title", said), cx=x, cy=_within(b.observed - less, axes), r=3.4, class_="dot")
    return element("g", whisker, *(() if beyond else (dot,)))


def _within(value: float, axes: Axes) -> float:
    """Where a value is drawn: at the edge if it lies beyond."""
    return axes.y(min(max(value, axes.y.low), axes.y.high))


def _strip(bins: Sequence[Bin], axes: Axes, colour: int) -> Markup:
    """How the predictions are distributed: a bar from edge to edge of each bin, its area as many as it holds."""
    density = [b.count / (b.high - b.low) if b.high > b.low else 0.0 for b in bins]
    floor, most = HEIGHT + STRIP - 2, max(density) or 1.0
    bars = []
    for b, dense in zip(bins, density, strict=True):
        left, right = (axes.x(min(max(edge, axes.x.low), axes.x.high)) for edge in (b.low, b.high))
        height = max(1.0, (STRIP - 10) * dense / most)
        width = max(right - left - 0.5, 0.5)
        bars.append(element("rect", x=left, y=floor - height, width=width, height=height, class_="fill"))
    ground = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=floor, y2=floor, class_="axis")
    return element("g", *bars, ground, class_=f"c{colour % 8}")
