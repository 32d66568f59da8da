"""Loss and metrics over the steps, training beside validation, every label in its colour."""

from __future__ import annotations

from collections.abc import Sequence

from hybridrec.train.report.chart import Line, figure
from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Record, Run
from hybridrec.train.report.series import metric_keys, number, points, split_key, title

MARKS_UP_TO = 20  # epochs


def curves(run: Run) -> Markup:
    """A chart per metric. Nothing where the run has no metrics."""
    keys = metric_keys(run.of("train", "valid"))
    if not keys:
        return Markup("")
    labels = list(dict.fromkeys(label for label, _ in map(split_key, keys) if label))
    marks = epoch_ends(run.of("train"))
    metrics = list(dict.fromkeys(split_key(key)[1] for key in keys))
    charts = [
        figure(title(metric), _lines(run, [k for k in keys if split_key(k)[1] == metric], labels), marks=marks)
        for metric in metrics
    ]
    return element("section", element("h2", "Curves"), element("div", *charts, class_="charts"), id="curves")


def _lines(run: Run, keys: Sequence[str], labels: Sequence[str]) -> list[Line]:
    """With one label colours tell training from validation; with several they tell labels, and training is dashed."""
    lines = []
    for kind, place in (("train", 0), ("valid", 1)):
        for key in keys:
            label = split_key(key)[0]
            several = len(labels) > 1 and label
            colour = labels.index(label) if several else place
            name = f"{label} {kind}" if several else kind
            found = points(run.of(kind), key)
            dashed = bool(several) and kind == "train"
            legend = ("" if dashed else label) if several else None
            lines.append(Line(name, found, colour, dashed=dashed, noisy=kind == "train", legend=legend))
    return lines


def epoch_ends(records: Sequence[Record]) -> list[float]:
    """The steps at which a new epoch has begun; none where there are too many to mark.

    >>> epoch_ends([{"step": s, "epoch": s // 20} for s in range(0, 50, 10)])
    [20.0, 40.0]
    """
    found, before = [], None
    for record in records:
        epoch = number(record.get("epoch"))
        if before is not None and epoch is not None and int(epoch) > int(before):
            found.append(float(record["step"]))
        before = epoch if epoch is not None else before
    return found if len(found) <= MARKS_UP_TO else []
