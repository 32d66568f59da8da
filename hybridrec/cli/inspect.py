"""`hybridrec inspect`: what is in these Parquet files."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrec.cli.progress import human_bytes

if TYPE_CHECKING:
    from hybridrec.data.inspect import Column, Lengths, Report

BAR = 24
MAX_VALUES = 56
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def inspect(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Parquet files, globs, folders or URLs of one schema."),
    ],
    schema: Annotated[Path | None, typer.Option(help="File to write: what training takes the columns for.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Rows to read for what the footers do not tell.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show schema, sizes, encodings, nulls, distinct values, list lengths and sample values.

    Sizes, encodings and the nulls of flat columns are exact: the footers tell.
    Distinct values, list lengths and the nulls of lists are exact when the data
    have at most --sample rows. Else they come from a sample spread over the row
    groups: nulls are marked *, distinct values are estimated (Chao) and marked ~.

    [bold]Examples[/bold]

    hybridrec inspect clicks.parquet

    hybridrec inspect "logs/day=*/*.parquet" --sample 1000000

    hybridrec inspect clicks/ --json | jq .rows

    hybridrec inspect clicks/ --schema s.json   # edit it, then: hybridrec train clicks/ data.schema=s.json
    """
    if schema is not None:
        _write_schema(files, schema)
        return
    from hybridrec.data.inspect import inspect as run

    report = run(files, sample)
    if as_json:
        typer.echo(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        _show(report)


def _write_schema(files: list[str], path: Path) -> None:
    from hybridrec.data.output import atomic_file
    from hybridrec.train.launch import open_data

    found = open_data(files, batch_size=1).schema
    with atomic_file(path) as beside:
        found.save(beside)
    typer.echo(f"wrote {path}: {found}")


def _show(report: Report) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in _head(report):
        typer.echo(line)
    header, *rows = _table(report.columns)
    typer.echo()
    typer.secho(_cut(header, width), bold=True)
    for line in rows:
        typer.echo(_cut(line, width))
    for column in report.columns:
        if column.lengths is not None:
            typer.echo("\n" + _plot(column, column.lengths))
    if report.metadata:
        typer.echo()
    for key, value in report.metadata.items():
        typer.echo(f"metadata {key}: {value if len(value) <= 600 else value[:597] + '...'}")


def _table(columns: list[Column]) -> list[str]:
    """Aligned lines, the header first; numbers to the right."""
    titles = ["column", "type", "nulls", "distinct", "bytes", "ratio", "encodings", "range: first values"]
    rows = [titles, *(_row(column) for column in columns)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(titles))]
    lines = []
    for cells in rows:
        padded = [
            f"{c:>{w}}" if 2 <= i <= 5 else f"{c:<{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _head(report: Report) -> list[str]:
    fewest, most = report.group_rows
    each = f"{most:,} rows each" if fewest == most else f"{fewest:,} to {most:,} rows each"
    groups = f"{report.row_groups:,} row group{'' if report.row_groups == 1 else 's'}"
    name = report.files[0] if len(report.files) == 1 else f"{len(report.files)} files from {report.files[0]}"
    basis = "all rows" if report.sampled_rows == report.rows else f"a sample of {report.sampled_rows:,} rows"
    ratio = f", {human_bytes(report.raw_bytes)} uncompressed" if report.raw_bytes else ""
    return [
        name,
        f"{report.rows:,} rows, {len(report.columns)} columns, {groups} ({each})",
        f"{human_bytes(report.bytes)} compressed ({', '.join(report.compression) or 'none'}){ratio}, "
        f"by {', '.join(report.created_by)}",
        f"distinct values and list lengths from {basis}",
    ]


def _row(column: Column) -> list[str]:
    nulls = _share(column.nulls) + ("*" if column.nulls_from == "sample" else "")
    if column.element_nulls:
        nulls += f" ({_share(column.element_nulls)} of elements)"
    distinct = "" if column.distinct is None else f"{column.distinct:,}"
    if column.distinct_from == "sample" and distinct:
        distinct = "~" + distinct
    ratio = f"{column.raw_bytes / column.bytes:.1f}" if column.bytes else ""
    encodings = " ".join(name.lower() for name in column.encodings)
    values = "  ".join(_value(value) for value in column.values)
    if column.low is not None and not isinstance(column.low, str):
        values = f"{_value(column.low)} .. {_value(column.high)}: {values}"
    values = values if len(values) <= MAX_VALUES else values[: MAX_VALUES - 3] + "..."
    kind = re.sub(r"<(element|item|array_element): ", "<", column.type.replace(" not null", ""))
    return [column.name, kind, nulls, distinct, human_bytes(column.bytes), ratio, encodings, values]


def _share(share: float | None) -> str:
    if share is None:
        return ""
    return "0" if share == 0 else "<0.01 %" if share < 1e-4 else f"{100 * share:.2f} %"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return "null" if value is None else value if isinstance(value, str) else str(value)


def _plot(column: Column, lengths: Lengths) -> str:
    """A list column's lengths as horizontal bars."""
    total, top = sum(lengths.counts), max(lengths.counts)
    lines = [
        f"{column.name}: list lengths, mean {lengths.mean:.1f}, p50 {lengths.p50:,}, "
        f"p99 {lengths.p99:,}, max {lengths.max:,}"
    ]
    labels = [
        f"{a:,}" if b == a + 1 else f"{a:,}-{b - 1:,}" for a, b in zip(lengths.edges, lengths.edges[1:], strict=False)
    ]
    width = max(map(len, labels))
    for label, count in zip(labels, lengths.counts, strict=True):
        eighths = round(8 * BAR * count / top)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"  {label:>{width}} {bar:<{BAR}} {100 * count / total:5.1f} %")
    return "\n".join(lines)
