"""What the run was made of: environment, configuration, schema."""

from __future__ import annotations

import json
from typing import Any

from hybridrec.train.report.markup import Markup, element
from hybridrec.train.report.run import Run

OPEN_UP_TO = 30  # rows; a longer list starts folded
SCHEMA_FIRST = ("name", "kind", "type", "null")


def details(run: Run) -> Markup:
    """The three lists; nothing where all are empty."""
    parts = [
        _pairs("Environment", run.environment),
        _pairs("Configuration", run.config),
        _schema(run.schema),
    ]
    shown = [part for part in parts if part]
    return element("section", element("h2", "Details"), *shown, id="details") if shown else Markup("")


def _pairs(name: str, values: dict[str, Any]) -> Markup | None:
    rows = [element("tr", element("th", key, scope="row"), element("td", value)) for key, value in flatten(values)]
    return _folded(name, len(rows), element("table", element("tbody", *rows), class_="pairs")) if rows else None


def flatten(values: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names.

    >>> flatten({"model": {"name": "deepfm", "hidden": [64, 32]}, "seed": 0})
    [('model.name', 'deepfm'), ('model.hidden', '[64, 32]'), ('seed', '0')]
    """
    made = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            made.extend(flatten(value, f"{before}{key}."))
        else:
            made.append((f"{before}{key}", _written(value)))
    return made


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _schema(schema: dict[str, Any]) -> Markup | None:
    features = schema.get("features")
    features = [f for f in features if isinstance(f, dict)] if isinstance(features, list) else []
    if not features:
        return _pairs("Schema", schema)
    found = dict.fromkeys(key for feature in features for key in feature)
    columns = [*(c for c in SCHEMA_FIRST if c in found), *(c for c in found if c not in SCHEMA_FIRST)]
    head = element("tr", *(element("th", column) for column in columns))
    rows = [element("tr", *(_feature(feature, column) for column in columns)) for feature in features]
    table = element("table", element("thead", head), element("tbody", *rows))
    return _folded("Schema", len(rows), table)


def _feature(feature: dict[str, Any], column: str) -> Markup:
    said = "" if feature.get(column) is None else _written(feature[column])
    if column == "kind":
        return element("td", element("span", said, class_="kind"))
    return element("th", said, scope="row") if column == "name" else element("td", said)


def _folded(name: str, rows: int, table: Markup) -> Markup:
    summary = element("summary", name, element("span", f"{rows:,}", class_="count"))
    return element(
        "details",
        summary,
        element("div", table, class_="scroll"),
        open="" if rows <= OPEN_UP_TO else None,
        class_="card",
    )
