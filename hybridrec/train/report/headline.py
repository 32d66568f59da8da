"""The result at a glance: the final and the best value of every metric and label, and the size of the run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hybridrec.train.report import numbers
from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Record, Run
from hybridrec.train.report.series import best, metric_keys, number, points, split_key, title
from hybridrec.train.report.tables import totals
from hybridrec.train.report.thin import Point


def headline(run: Run) -> Markup:
    """Tiles of the metrics (a table where there are several labels), then tiles of the run."""
    shown = run.of("valid", "final") or run.of("train")
    keys = sorted(metric_keys(shown), key=lambda key: split_key(key)[1] == "loss")
    labels = list(dict.fromkeys(label for label, _ in map(split_key, keys) if label))
    if not keys:
        result = element("p", "No metrics yet.", class_="none")
    elif len(labels) > 1:
        result = _matrix(run, keys, labels)
    else:
        result = element("div", *(_tile(run, key) for key in keys), class_="tiles big")
    shared = [_tile(run, key) for key in keys if not split_key(key)[0]] if len(labels) > 1 else []
    return element("section", element("h2", "Result"), _basis(run), result, _facts(run, shared), id="result")


def _basis(run: Run) -> Markup:
    for kind, said in (("final", "final evaluation"), ("valid", "validation"), ("train", "training data")):
        if records := run.of(kind):
            return element("p", f"Values of the {said} at step {numbers.whole(records[-1]['step'])}.", class_="lead")
    return Markup("")


def current(run: Run, key: str) -> tuple[float, str]:
    """The newest value of a metric and where it is from: the final evaluation, else validation, else training.

    >>> from pathlib import Path
    >>> current(Run(Path(), [{"kind": "valid", "step": 5, "auc": 0.7}]), "auc")
    (0.7, 'valid')
    """
    for kind in ("final", "valid", "train"):
        if found := points(run.of(kind), key):
            return found[-1][1], kind
    return math.nan, ""


def _best(run: Run, key: str) -> Point | None:
    measured = points(run.of("valid"), key) or points(run.of("train"), key)
    return best(measured, split_key(key)[1])


def _tile(run: Run, key: str) -> Markup:
    value, _ = current(run, key)
    return tile(title(split_key(key)[1]), numbers.plain(value), _best_said(_best(run, key)))


def _best_said(found: Point | None) -> str:
    return "" if found is None else f"best {numbers.plain(found[1])}, step {numbers.whole(found[0])}"


def tile(name: str, value: str, more: str = "") -> Markup:
    """A number with its name."""
    parts = [element("span", name, class_="what"), element("span", value, class_="value")]
    return element("div", *parts, *([element("span", more, class_="more")] if more else []), class_="tile")


def _matrix(run: Run, keys: Sequence[str], labels: Sequence[str]) -> Markup:
    metrics = list(dict.fromkeys(metric for label, metric in map(split_key, keys) if label))
    by_place = {split_key(key): key for key in keys}
    head = element("tr", element("th", "Label"), *(element("th", title(metric), class_="n") for metric in metrics))
    body = [
        element(
            "tr",
            element("th", element("i", class_=f"chip c{i % 8}"), label, scope="row"),
            *(_cell(run, by_place.get((label, metric))) for metric in metrics),
        )
        for i, label in enumerate(labels)
    ]
    table = element("table", element("thead", head), element("tbody", *body), class_="matrix")
    return element("div", table, class_="scroll card")


def _cell(run: Run, key: str | None) -> Markup:
    if key is None:
        return element("td", numbers.NONE, class_="n")
    value, _ = current(run, key)
    return element(
        "td", element("span", numbers.plain(value), class_="value"),
        element("span", _best_said(_best(run, key)), class_="more"), class_="n",
    )  # fmt: skip


def _facts(run: Run, shared: Sequence[Markup]) -> Markup:
    """Tiles of the run: what all labels share (the loss), steps, time, speed, rows."""
    tiles = list(shared)
    if run.records:
        tiles.append(tile("Steps", numbers.whole(max(record["step"] for record in run.records)), _epochs(run.records)))
    if (seconds := elapsed(run.records)) is not None:
        tiles.append(tile("Time", numbers.duration(seconds)))
    if (speed := typical(run.of("train"), "samples_per_s")) is not None:
        tiles.append(tile("Samples per second", numbers.whole(speed), "median"))
    if (behind := typical(served(run.of("train")), "staleness")) is not None:
        tiles.append(tile("Steps behind, rows on servers", numbers.plain(behind), f"at most {_most_behind(run)}"))
    rows, size = totals(run)
    if rows:
        tiles.append(tile("Embedding rows", numbers.short(rows), numbers.size(size) if size else ""))
    return element("div", *tiles, class_="tiles") if tiles else Markup("")


def served(records: Sequence[Record]) -> list[Record]:
    """What records tell of servers, with their steps.

    >>> served([{"step": 5, "servers": {"staleness": 1.5}}, {"step": 10}])
    [{'step': 5, 'staleness': 1.5}]
    """
    found = [(record["step"], record.get("servers")) for record in records]
    return [{"step": step, **told} for step, told in found if isinstance(told, dict)]


def _most_behind(run: Run) -> str:
    told = served(run.of("train"))
    most = max((number(each.get("staleness_max")) or 0 for each in told), default=0)
    allowed = max((number(each.get("allowed")) or 0 for each in told), default=0)
    return f"{most:g}, allowed {allowed:g}"


def _epochs(records: Sequence[Record]) -> str:
    found = [value for record in records if (value := number(record.get("epoch"))) is not None]
    return f"epoch {max(found):g}" if found else ""


def elapsed(records: Sequence[Record]) -> float | None:
    """Seconds from the start to the last record.

    >>> elapsed([{"step": 10, "time": 1.7e9, "stages": {"step": 0.5}}, {"step": 20, "time": 1.7e9 + 30}]), elapsed([])
    (35.0, None)
    """
    times = [t for record in records if (t := number(record.get("time"))) is not None and math.isfinite(t)]
    return times[-1] - times[0] + _before(records[0]) if times else None


def _before(first: Record) -> float:
    """About how long the steps took that the first record sums up: it has the seconds of each stage per step."""
    stages = first.get("stages")
    seconds = [number(value) or 0.0 for value in stages.values()] if isinstance(stages, dict) else []
    return sum(seconds) * first["step"] if all(map(math.isfinite, seconds)) else 0.0


def typical(records: Sequence[Record], key: str) -> float | None:
    """The median of a value over the records."""
    found = [y for _, y in points(records, key) if math.isfinite(y)]
    return statistics.median(found) if found else None
