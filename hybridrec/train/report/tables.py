"""Statistics of every embedding table: rows, bytes, hit rate, norms, and how the rows grew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hybridrec.train.report import numbers
from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Run
from hybridrec.train.report.series import number

FIRST = ("store", "dim", "dtype", "rows", "capacity", "bytes", "hit_rate", "norm", "evicted")
BARS = {"rows": None, "bytes": None, "hit_rate": 1.0}  # columns with a bar, and what a full one means
SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 84, 20, 60

Stats = dict[str, dict[str, Any]]


def tables(run: Run) -> Markup:
    """The table of tables; nothing where the run tells of none."""
    stats = statistics(run)
    if not stats:
        return Markup("")
    alike = _alike(stats)
    columns = [name for name in _columns(stats) if name not in alike]
    head = element(
        "tr", *(_head(stats, name, i) for i, name in enumerate(["table", *columns])), element("th", "growth")
    )
    body = [element("tr", *_row(run, name, stats, columns)) for name in stats]
    rows, size = totals(run)
    shared = [f"{name} {said}" for name, said in alike.items() if name != "features"]
    lead = f"{len(stats)} tables, {numbers.whole(rows)} rows, {numbers.size(size)}. A click on a column sorts by it."
    lead += f" All have {', '.join(shared)}." if shared else ""
    table = element("table", element("thead", head), element("tbody", *body), class_="sortable")
    return element(
        "section", element("h2", "Tables"), element("p", lead, class_="lead"),
        element("div", table, class_="scroll card"), id="tables",
    )  # fmt: skip


def _alike(stats: Stats) -> dict[str, str]:
    """Columns that need not be shown: of one value for all tables, and features where each table has its own name."""
    found = {}
    for column in _columns(stats):
        values = [table.get(column) for table in stats.values()]
        if column not in BARS and len(values) > 1 and all(value == values[0] for value in values):
            amount = number(values[0])
            found[column] = str(values[0]) if amount is None else _said(column, amount)
    if all(values.get("features", name) == name for name, values in stats.items()):
        found["features"] = ""
    return found


def statistics(run: Run) -> Stats:
    """By table: what the plan says, and over it the newest record's numbers.

    >>> from pathlib import Path
    >>> run = Run(Path(), [{"kind": "train", "step": 1, "tables": {"user": {"rows": 5, "norm": {"mean": 0.1}}}}])
    >>> statistics(run)
    {'user': {'rows': 5, 'norm mean': 0.1}}
    """
    made: Stats = {name: _flat(values) for name, values in _planned(run.plan).items()}
    for found in _newest(run):
        for name, values in found.items():
            if isinstance(values, dict):
                made.setdefault(name, {}).update(_flat(values))
    return made


def _newest(run: Run) -> list[dict[str, Any]]:
    """The last tables of each kind of record, training at the end: validations tell norms, training tells hit rates."""
    found = []
    for kind in ("valid", "final", "train"):
        held = [record["tables"] for record in run.of(kind) if isinstance(record.get("tables"), dict)]
        found += held[-1:]
    return found


def totals(run: Run) -> tuple[float, float]:
    """Rows and bytes over all tables."""
    stats = list(statistics(run).values())
    return sum(_finite(table.get("rows")) or 0.0 for table in stats), sum(
        _finite(table.get("bytes")) or 0.0 for table in stats
    )


def _planned(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    held: Any = plan.get("tables", plan)
    if isinstance(held, list):
        held = {
            str(item.get("name")): {k: v for k, v in item.items() if k != "name"}
            for item in held
            if isinstance(item, dict)
        }
    return {name: values for name, values in held.items() if isinstance(values, dict)} if isinstance(held, dict) else {}


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """One level of nesting is written out: {"norm": {"mean": 1}} is "norm mean"."""
    made = {}
    for key, value in values.items():
        if isinstance(value, dict):
            made.update({f"{key} {inner}": v for inner, v in value.items()})
        else:
            made[key] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return made


def _columns(stats: Stats) -> list[str]:
    found = dict.fromkeys(key for values in stats.values() for key, value in values.items() if value is not None)
    first = [name for name in FIRST if name in found]
    return first + [name for name in found if name not in first]


def _head(stats: Stats, name: str, place: int) -> Markup:
    button = element("button", name.replace("_", " "), type="button", data_column=place)
    amounts = any(number(table.get(name)) is not None for table in stats.values())
    return element("th", button, class_="n" if amounts else None)


def _row(run: Run, name: str, stats: Stats, columns: Sequence[str]) -> list[Markup]:
    cells = [element("th", name, scope="row", data_v=name)]
    for column in columns:
        most = BARS.get(column) or max(
            (v for t in stats.values() if (v := _finite(t.get(column))) is not None), default=0
        )
        cells.append(_cell(column, stats[name].get(column), most))
    return [*cells, element("td", _spark(run, name))]


def _cell(column: str, value: Any, most: float) -> Markup:
    amount = number(value)
    if value is None:
        return element("td", numbers.NONE, class_="n", data_v="")
    if amount is None:
        return element("td", str(value), data_v=str(value))
    said = _said(column, amount)
    if column not in BARS or not math.isfinite(amount):
        return element("td", said, class_="n", data_v=repr(amount))
    share = min(1.0, max(0.0, amount / most)) if most else 0.0
    bar = element("span", class_="bar", style=f"--share:{share:.4f}")
    return element("td", element("span", said), bar, class_="n barred", data_v=repr(amount))


def _said(column: str, amount: float) -> str:
    if "bytes" in column:
        return numbers.size(amount)
    if column == "capacity":
        return numbers.short(amount)
    if column.endswith(("rate", "share")):
        return numbers.percent(amount)
    return numbers.whole(amount) if amount.is_integer() else numbers.plain(amount)


def _finite(value: Any) -> float | None:
    amount = number(value)
    return amount if amount is not None and math.isfinite(amount) else None


def _spark(run: Run, name: str) -> Markup:
    """A small line of the rows over the steps; a flat one where they do not grow."""
    records = [record for record in run.records if isinstance(record.get("tables"), dict)]
    grown = []
    for record in records[:: max(1, len(records) // SPARK_POINTS)]:
        values = record["tables"].get(name)
        rows = _finite(values.get("rows")) if isinstance(values, dict) else None
        if rows is not None:
            grown.append((float(record["step"]), rows))
    if len(grown) < 2 or grown[-1][0] <= grown[0][0]:
        return Markup("")
    start, end, most = grown[0][0], grown[-1][0], max(rows for _, rows in grown) or 1.0
    across, up = (SPARK_WIDTH - 4) / (end - start), (SPARK_HEIGHT - 5) / most
    places = [f"{2 + (x - start) * across:.1f} {SPARK_HEIGHT - 2 - y * up:.1f}" for x, y in grown]
    said = element("title", f"rows: {numbers.whole(grown[0][1])} to {numbers.whole(grown[-1][1])}")
    shape = element("path", d="M" + "L".join(places), class_="line")
    return element("svg", said, shape, viewBox=f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}", class_="spark c0")
