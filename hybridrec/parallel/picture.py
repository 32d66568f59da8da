"""A plan as one picture: devices from left to right, their seconds on top, below a line for every table."""

from __future__ import annotations

from math import log10

from hybridrec.parallel.plan import SCHEMES, Placement, Plan
from hybridrec.parallel.predict import Prediction
from hybridrec.parallel.workload import TableLoad, Workload
from hybridrec.train.report import numbers
from hybridrec.train.report.markup import Markup, element

LINES = 60  # tables that are drawn, the largest
LEFT, RIGHT, TOP, BARS, LINE = 230, 150, 62, 120, 16
COLOURS = {"replicated": "#7b8794", "table": "#12389e", "row": "#13967c", "column": "#db5823"}
PHASES = ("#6d58af", "#4a90a4", "#7a3b12", "#cd8cd7", "#3b2266", "#e2b33c", "#c9ccd1", "#8d9aa8")
INK, SOFT, RULE = "#1c1f23", "#5d646d", "#e3e3df"


def picture(plan: Plan, workload: Workload, found: Prediction, title: str) -> str:
    """The SVG. The stronger a field, the more bytes of the table lie on that device."""
    tables = sorted(workload.tables, key=lambda table: -table.rows * table.row_bytes())[:LINES]
    step = max(1.0, min(60.0, 832 / plan.world))
    width, below = LEFT + max(step * plan.world, 420) + RIGHT, TOP + BARS + 44
    height = below + LINE * len(tables) + 40
    most = max(table.rows * table.row_bytes() for table in tables)
    placed = {each.table: each for each in plan.placements}
    lines = [_line(table, placed[table.name], below + LINE * i, step, most) for i, table in enumerate(tables)]
    rest = len(workload.tables) - len(tables)
    said = f"and {rest:,} smaller tables" if rest else f"{len(tables)} tables, the largest first"
    return element(
        "svg", element("rect", width=width, height=height, fill="#ffffff"), _head(title, found),
        _bars(found, step), *lines, _text(said, LEFT - 10, below + LINE * len(tables) + 16, anchor="end", fill=SOFT),
        _schemes(below + LINE * len(tables) + 16),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:.0f} {height:.0f}", width=f"{width:.0f}",
        height=f"{height:.0f}", font_family="system-ui, 'DejaVu Sans', sans-serif", font_size=11,
    )  # fmt: skip


def _text(said: str, x: float, y: float, anchor: str = "start", fill: str = INK, **more: object) -> Markup:
    return element("text", said, x=x, y=y, text_anchor=anchor, fill=fill, **more)


def _head(title: str, found: Prediction) -> Markup:
    device, phase = found.bottleneck
    said = f"step {1e3 * found.step:.3g} ms at least, bound by device {device}: {phase}"
    return element("g", _text(title, 16, 24, font_size=15, font_weight=600), _text(said, 16, 43, fill=SOFT))


def _bars(found: Prediction, step: float) -> Markup:
    """The seconds of each device, its phases one on the other."""
    bottom, parts = TOP + BARS, []
    gap = 1 if step > 4 else 0
    for device in range(len(found.memory)):
        y, x = float(bottom), LEFT + step * device
        for colour, (phase, times) in zip(PHASES, found.phases.items(), strict=True):
            tall = BARS * times[device] / (found.step or 1.0)  # with all tables on servers there is nothing to do
            y -= tall
            told = element("title", f"device {device}, {phase}: {1e3 * times[device]:.3g} ms")
            if tall > 0.2:
                parts.append(element("rect", told, x=x, y=y, width=step - gap, height=tall, fill=colour))
    parts += [
        _text(f"{1e3 * found.step:.3g} ms", LEFT - 10, TOP + 9, anchor="end", fill=SOFT),
        _text("time of a step", LEFT - 10, TOP + 9 + BARS / 2, anchor="end"),
        element("line", x1=LEFT, x2=LEFT + step * len(found.memory), y1=bottom, y2=bottom, stroke=RULE),
        *_ticks(len(found.memory), step, bottom + 15),
        *_phases(found, LEFT + max(step * len(found.memory), 420) + 12),
    ]
    return element("g", *parts)


def _ticks(world: int, step: float, y: float) -> list[Markup]:
    every = next(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, world) if n * step >= 24 or n >= world)
    ticks = [_text(str(d), LEFT + step * (d + 0.5), y, anchor="middle", fill=SOFT) for d in range(0, world, every)]
    return [_text("device", LEFT - 10, y, anchor="end"), *ticks]


def _phases(found: Prediction, x: float) -> list[Markup]:
    shown = [(c, name) for c, (name, times) in zip(PHASES, found.phases.items(), strict=True) if max(times) > 0]
    parts = []
    for i, (colour, name) in enumerate(reversed(shown)):
        y = TOP + 16 * i
        short = {"reduction of replicated tables": "reduction"}.get(name, name)
        parts += [element("rect", x=x, y=y, width=10, height=10, fill=colour), _text(short, x + 15, y + 9)]
    return parts


def _line(table: TableLoad, placement: Placement, y: float, step: float, most: float) -> Markup:
    """One table: its name, the bytes it has, and the devices that it is on."""
    size, gap = table.rows * table.row_bytes(), 1 if step > 4 else 0
    name = table.name if len(table.name) <= 22 else table.name[:21] + "…"
    parts = [_text(f"{name}  {numbers.size(size)}", LEFT - 10, y + 12, anchor="end")]
    if placement.where == "server":
        said = f"on {len(placement.devices)} server{'s' * (len(placement.devices) > 1)}"
        return element("g", *parts, _text(said, LEFT, y + 12, fill=SOFT))
    hot = 1.0 if placement.cache is None else placement.cache
    for first, last, held in _runs(table, placement, apart=step > 4):
        strong = 0.25 + 0.75 * max(0.0, 1 - log10(most / max(hot * held, 1)) / 6)
        said = f"{first}" if first == last else f"each of {first} to {last}"
        held_there = f"{numbers.size(hot * held)} on device {said}{_cold(placement, held)}"
        told = element("title", f"{placement.table}, {placement.scheme}: {held_there}")
        parts.append(
            element(
                "rect", told, x=LEFT + step * first, y=y + 2, width=max(3.0, step * (last + 1 - first) - gap),
                height=LINE - 3, fill=COLOURS[placement.scheme], fill_opacity=f"{strong:.2f}",
            )
        )  # fmt: skip
    if placement.where == "host" or placement.cache is not None:
        beside = "host" if placement.cache is None else f"{100 * placement.cache:.3g} % hot"
        parts.append(_text(beside, LEFT + step * (max(placement.devices) + 1) + 4, y + 12, fill=SOFT))
    return element("g", *parts)


def _cold(placement: Placement, held: float) -> str:
    return "" if placement.cache is None else f", {numbers.size((1 - placement.cache) * held)} on its host"


def _runs(table: TableLoad, placement: Placement, apart: bool) -> list[tuple[int, int, float]]:
    """(first device, last device, bytes on each); `apart`: every device alone."""
    size, count = table.rows * table.row_bytes(), len(placement.devices)
    whole = placement.scheme in ("table", "replicated")
    shares = [width / table.dim for width in placement.columns] or [1.0 if whole else 1 / count] * count
    runs: list[tuple[int, int, float]] = []
    for device, share in sorted(zip(placement.devices, shares, strict=True)):
        if runs and not apart and runs[-1][1] == device - 1 and runs[-1][2] == size * share:
            runs[-1] = (runs[-1][0], device, size * share)
        else:
            runs.append((device, device, size * share))
    return runs


def _schemes(y: float) -> Markup:
    parts = []
    for i, scheme in enumerate(SCHEMES):
        x = LEFT + 105 * i
        parts += [element("rect", x=x, y=y - 9, width=10, height=10, fill=COLOURS[scheme]), _text(scheme, x + 15, y)]
    return element("g", *parts)
