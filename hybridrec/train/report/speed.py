"""Where the time went: samples per second, waiting for data, the slowest stages, and the learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridrec.train.report import numbers
from hybridrec.train.report.chart import COLOURS, Line, figure
from hybridrec.train.report.curves import epoch_ends
from hybridrec.train.report.headline import served, typical
from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Record, Run
from hybridrec.train.report.series import number, points

INPUT_BOUND = 0.2  # of the time spent waiting for data
SAID = {
    "data": "waiting for the next batch",
    "forward": "lookups, dense layers, loss",
    "backward": "gradients",
    "step": "optimizers: dense weights and rows",
    "metrics": "streaming metrics",
    "other": "callbacks, logging, checkpoints",
}


def speed(run: Run) -> Markup:
    """Throughput, stages and learning rates; nothing where the run tells of none."""
    train = run.of("train")
    charts = [
        *_chart("Samples per second", train, ["samples_per_s"]),
        *_chart("Waiting for data, % of the time", _waits(train), ["wait_share"]),
        *_chart("Steps that rows on servers were behind", served(train), ["staleness"]),
        *_rates(train),
    ]
    seconds = stage_seconds(train)
    stages = _stages(seconds)
    if not charts and not stages:
        return Markup("")
    parts = ([stages] if stages else []) + ([element("div", *charts, class_="charts")] if charts else [])
    return element("section", element("h2", "Speed"), _verdict(train, seconds), *parts, id="speed")


def _chart(
    caption: str, records: Sequence[Record], keys: Sequence[str], names: Sequence[str] = ("train",)
) -> list[Markup]:
    lines = [
        Line(name, found, i, noisy=True)
        for i, (key, name) in enumerate(zip(keys, names, strict=True))
        if (found := points(records, key))
    ]
    return [figure(caption, lines, y_from=0.0, marks=epoch_ends(records))] if lines else []


def _waits(records: Sequence[Record]) -> list[Record]:
    """The records with their share of waiting in percent."""
    shares = [(record, number(record.get("wait_share"))) for record in records]
    return [{**record, "wait_share": 100 * share} for record, share in shares if share is not None]


def _rates(records: Sequence[Record]) -> list[Markup]:
    """A chart for each learning rate, as they differ by orders of magnitude."""
    flat = [{**_rates_of(record), "step": record["step"]} for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record if name != "step"))
    lines = [Line(name, points(flat, name)) for name in names]
    return [figure(f"Learning rate of {line.name}", [line], y_from=0.0) for line in lines if line.points]


def _rates_of(record: Record) -> dict[str, object]:
    """By name, whether a record has "lr" and "row_lr", "lr" as an object, or "lr/name".

    >>> _rates_of({"lr": 0.001, "row_lr": 0.05}), _rates_of({"lr": {"tower": 0.1}})
    ({'layers': 0.001, 'rows': 0.05}, {'tower': 0.1})
    """
    held = record.get("lr")
    made: dict[str, object] = dict(held) if isinstance(held, dict) else {} if held is None else {"layers": held}
    if record.get("row_lr") is not None:
        made["rows"] = record["row_lr"]
    return made | {key.removeprefix("lr/"): value for key, value in record.items() if key.startswith("lr/")}


def stage_seconds(records: Sequence[Record]) -> dict[str, float]:
    """Mean seconds per step by stage, the slowest first. A record has the means since the one before it.

    >>> stage_seconds([{"step": 10, "stages": {"data": 1.0, "step": 3.0}}, {"step": 40, "stages": {"data": 5.0}}])
    {'data': 4.0, 'step': 0.75}
    """
    total: dict[str, float] = {}
    before = steps = 0.0
    for record in records:
        stages, passed = record.get("stages"), max(record["step"] - before, 0)
        before = record["step"]
        if not isinstance(stages, dict):
            continue
        steps += passed
        for name, value in stages.items():
            seconds = number(value)
            if seconds is not None and math.isfinite(seconds):
                total[name] = total.get(name, 0.0) + seconds * passed
    return {name: value / steps for name, value in sorted(total.items(), key=lambda item: -item[1]) if steps}


def _stages(seconds: dict[str, float]) -> Markup | None:
    whole = sum(seconds.values())
    if whole <= 0:
        return None
    order = [*(name for name in SAID if name in seconds), *(name for name in seconds if name not in SAID)]
    colours = {name: f"c{i % COLOURS}" for i, name in enumerate(order)}
    pieces = [_piece(name, seconds[name] / whole, colours[name]) for name in order]
    strip = element("div", *pieces, class_="strip", role="img", aria_label="Share of every stage")
    rows = [_stage(name, value, whole, colours[name]) for name, value in seconds.items()]
    names = (("Stage", None), ("Share", "n"), ("Per step", "n"), ("What it is", None))
    head = element("tr", *(element("th", name, class_=css) for name, css in names))
    table = element("table", element("thead", head), element("tbody", *rows))
    return element("div", strip, element("div", table, class_="scroll"), class_="card stages")


def _piece(name: str, share: float, colour: str) -> Markup:
    return element("span", class_=colour, style=f"flex-grow:{share:.5f}", title=f"{name}: {numbers.percent(share)}")


def _stage(name: str, seconds: float, whole: float, colour: str) -> Markup:
    return element(
        "tr",
        element("th", element("i", class_=f"chip {colour}"), name, scope="row"),
        element("td", numbers.percent(seconds / whole), class_="n"),
        element("td", numbers.duration(seconds), class_="n"),
        element("td", SAID.get(name, ""), class_="quiet"),
    )


def _verdict(records: Sequence[Record], seconds: dict[str, float]) -> Markup:
    whole = sum(seconds.values())
    share = seconds.get("data", 0.0) / whole if whole > 0 else typical(records, "wait_share")
    if share is None:
        return Markup("")
    slowest = next((f" The slowest stage is {name}." for name in seconds), "")
    bound = "The run waited for data: it is input-bound" if share > INPUT_BOUND else "The run is compute-bound"
    return element(
        "p", f"{bound}, with {numbers.percent(share)} of the time spent waiting for batches.{slowest}", class_="lead"
    )
