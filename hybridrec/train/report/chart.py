"""Line charts as inline SVG. Colours, fonts and the dark side are the style sheet's; hovering is page.js's."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hybridrec.train.report import numbers
from hybridrec.train.report.markup import Markup, element, join
from hybridrec.train.report.scale import Scale, span, tick_labels, ticks
from hybridrec.train.report.thin import SMOOTH_FROM, Point, smooth, thin

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 10, 30
COLOURS = 8
DOTS_UP_TO = 40  # points of a line that are marked one by one


@dataclass(frozen=True)
class Line:
    """One line of a chart. `dashed` tells training from validation where colours tell labels."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    noisy: bool = False  # many points are drawn faintly, with their running mean on top
    legend: str | None = None  # other than the name; "" for none

    @property
    def css(self) -> str:
        return f"c{self.colour % COLOURS}" + (" dashed" if self.dashed else "")


@dataclass(frozen=True)
class Axes:
    """The two scales of a chart, and what they are called."""

    x: Scale
    y: Scale
    x_name: str = "step"


def figure(caption: str, lines: Sequence[Line], *, y_from: float | None = None, marks: Sequence[float] = ()) -> Markup:
    """A chart with its caption and legend. `marks` are steps with a faint upright line: where epochs end.

    >>> figure("Loss", [Line("train", [(1, 0.7), (2, 0.5)])])[:41]
    '<figure class="chart"><figcaption><b>Loss'
    """
    lines = [line for line in lines if line.points]
    axes = _axes(lines, y_from)
    drawn = [_draw(line, axes) for line in lines]
    inside = [x for x in marks if axes.x.low < x < axes.x.high]
    canvas = element(
        "svg", frame(axes), *(_mark(x, axes) for x in inside), *drawn, _cursor(), viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img", aria_label=f"{caption}: {', '.join(line.name for line in lines)}", data_chart=_data(lines, axes),
    )  # fmt: skip
    listed = [line for line in lines if line.legend != "" and len(lines) > 1]
    said = [element("span", "solid: valid, dashed: train", class_="legend")] if _mixed(lines) else []
    head = element("figcaption", element("b", caption), *(_legend(line) for line in listed), *said)
    return element("figure", head, canvas, _faults(lines, axes), class_="chart")


def _mixed(lines: Sequence[Line]) -> bool:
    return any(line.dashed for line in lines) and not all(line.dashed for line in lines)


def _axes(lines: Sequence[Line], y_from: float | None) -> Axes:
    steps = [x for line in lines for x, _ in line.points]
    values = [y for line in lines for _, y in line.points if math.isfinite(y)]
    low, high = span(values)
    if y_from is not None:
        low, high = (y_from, high) if high > y_from else (y_from, y_from + 1.0)
    left, right = (min(steps), max(steps)) if steps else (0.0, 1.0)
    if left == right:
        left, right = left - 1, right + 1  # one step, in the middle
    return Axes(Scale(left, right, LEFT + 4, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP))


def frame(axes: Axes, height: int = HEIGHT) -> Markup:
    """Grid lines, ticks and the name of the x axis."""
    bottom = height - BOTTOM
    ys, xs = ticks(axes.y.low, axes.y.high, 4), _x_ticks(axes)
    parts = [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=axes.y(y), y2=axes.y(y), class_="grid") for y in ys]
    parts += [
        element("text", label, x=LEFT - 6, y=axes.y(y) + 4, text_anchor="end")
        for y, label in zip(ys, tick_labels(ys), strict=True)
    ]
    parts += [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis")]
    for x, label in zip(xs, tick_labels(xs), strict=True):
        parts.append(element("line", x1=axes.x(x), x2=axes.x(x), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(element("text", label, x=axes.x(x), y=bottom + 17, text_anchor=_anchor(axes.x(x))))
    if axes.x_name and not any(axes.x(x) < LEFT + 18 for x in xs):
        parts.append(element("text", axes.x_name, x=LEFT - 6, y=bottom + 17, text_anchor="end", class_="name"))
    return element("g", *parts, class_="frame")


def _x_ticks(axes: Axes) -> list[float]:
    """Steps are whole numbers, so their ticks are."""
    found = ticks(axes.x.low, axes.x.high, 5)
    return [x for x in found if x == int(x)] if axes.x_name == "step" else found


def _anchor(x: float) -> str:
    return "end" if x > WIDTH - RIGHT - 10 else "middle"


def _mark(x: float, axes: Axes) -> Markup:
    return element("line", x1=axes.x(x), x2=axes.x(x), y1=TOP, y2=HEIGHT - BOTTOM, class_="mark")


def _draw(line: Line, axes: Axes) -> Markup:
    known = sum(math.isfinite(y) for _, y in line.points)
    if line.noisy and known >= SMOOTH_FROM:
        mean = element("path", d=path(thin(smooth(line.points)), axes), class_="line")
        faint = [] if line.dashed else [element("path", d=path(thin(line.points), axes), class_="line faint")]
        return element("g", *faint, mean, class_=line.css)
    kept = thin(line.points)
    lonely = set() if known <= DOTS_UP_TO else set(_lonely(kept))
    dots = [_dot(point, line, axes) for point in kept if known <= DOTS_UP_TO or point in lonely]
    return element("g", element("path", d=path(kept, axes), class_="line"), *dots, class_=line.css)


def _lonely(points: Sequence[Point]) -> list[Point]:
    """Numbers between two gaps: a line alone would not show them."""
    known = [False, *(math.isfinite(y) for _, y in points), False]
    return [point for i, point in enumerate(points, 1) if known[i] and not known[i - 1] and not known[i + 1]]


def _dot(point: Point, line: Line, axes: Axes) -> Markup:
    x, y = point
    if not math.isfinite(y):
        return Markup("")
    said = element("title", f"{line.name}, {axes.x_name} {numbers.whole(x)}: {numbers.plain(y)}")
    return element(
        "circle", said, cx=axes.x(x), cy=_inside(axes.y(y)), r=2.6 if len(line.points) > 1 else 4.0, class_="dot"
    )


def path(points: Sequence[Point], axes: Axes) -> str:
    """The `d` of a path; it breaks where a value is no number.

    >>> axes = Axes(Scale(0, 10, 0, 10), Scale(0, 10, 210, 10))
    >>> path([(0, 0), (5, 10), (6, float("nan")), (7, 5)], axes)
    'M0 210L5 10M7 110'
    """
    made, pen = [], "M"
    for x, y in points:
        if math.isfinite(y):
            made.append(f"{pen}{_short(axes.x(x))} {_short(_inside(axes.y(y)))}")
        pen = "L" if math.isfinite(y) else "M"
    return "".join(made)


def _inside(y: float) -> float:
    return min(max(y, TOP - 4), HEIGHT - BOTTOM + 2)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _legend(line: Line) -> Markup:
    stroke = element("svg", element("path", d="M1 5H17", class_="line"), viewBox="0 0 18 10", class_="key " + line.css)
    return element("span", stroke, line.legend or line.name, class_="legend")


def _cursor() -> Markup:
    return element("line", y1=TOP, y2=HEIGHT - BOTTOM, class_="cursor")


def _data(lines: Sequence[Line], axes: Axes) -> str:
    """What page.js needs to answer a hover: the scale of x, and the points of every line."""
    shown = []
    for line in lines:
        kept = [(round(x), float(f"{y:.6g}")) for x, y in thin(line.points, 200) if math.isfinite(y)]
        shown.append([line.name, line.colour % COLOURS, kept])
    return json.dumps({"x": [axes.x.low, axes.x.high, axes.x.start, axes.x.end], "lines": shown}, separators=(",", ":"))


def _faults(lines: Sequence[Line], axes: Axes) -> Markup:
    """What the lines do not show, said below them."""
    values = [y for line in lines for _, y in line.points]
    broken = sum(not math.isfinite(y) for y in values)
    outside = sum(not axes.y.low <= y <= axes.y.high for y in values if math.isfinite(y))
    said = []
    if broken:
        said.append(f"{broken:,} of {len(values):,} values are NaN or infinite: the gaps.")
    if outside:
        said.append(f"{outside:,} of {len(values):,} values lie outside the range shown.")
    return element("p", " ".join(said), class_="fault") if said else join(())
