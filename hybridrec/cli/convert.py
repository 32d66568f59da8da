"""`hybridrec convert`: text logs to Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hybridrec.cli.progress import human_bytes, progress


def convert(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT",
            help="Text files (globs, folders; .gz .bz2 .zst .lz4 too), then the Parquet file.",
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="csv, tsv, criteo or libsvm; by default the file name tells."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Column names for files without a header: a,b,c.")] = None,
    types: Annotated[
        str | None, typer.Option(help="Types instead of the inferred ones: price=float32,tags=list<int64>.")
    ] = None,
    list_separator: Annotated[str, typer.Option(help="Between the elements of list columns.")] = "|",
    on_error: Annotated[
        str, typer.Option(help="Malformed lines: error (stop, naming the line) or skip (count).")
    ] = "error",
    row_group_rows: Annotated[int, typer.Option(min=1, help="Rows per row group.")] = 131_072,
    compression: Annotated[str, typer.Option(help="zstd, snappy, lz4, gzip, brotli or none.")] = "zstd",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and no progress.")] = False,
) -> None:
    """Convert CSV, TSV, Criteo or libsvm text to one Parquet file.

    [bold]csv, tsv[/bold]: the first line names the columns (or --columns), types are
    inferred from the first 4 MB. csv knows "quotes", tsv does not. An empty
    field is null.

    [bold]criteo[/bold]: no header, tabs: label, 13 whole numbers (I1 ... I13, written as
    float64: dense), 26 hexadecimal ids (C1 ... C26, written as int64; kept as
    text with --types C1=string).

    [bold]libsvm[/bold]: "label index:value ..." (a qid:q may follow the label) becomes
    label, qid, indices list<int64>, values list<float32>.

    The output is written beside under a hidden name and renamed when complete;
    memory stays bounded.

    [bold]Examples[/bold]

    hybridrec convert clicks.csv clicks.parquet

    hybridrec convert --format criteo day_0.gz day_1.gz criteo.parquet --on-error skip

    hybridrec convert "logs/*.tsv" logs.parquet --types user=int64,tags=list<int64>

    hybridrec convert train.libsvm train.parquet --force
    """
    if len(paths) < 2:
        raise typer.BadParameter("name at least one input and the output: hybridrec convert IN... OUT")
    *inputs, out = paths
    from hybridrec.data.convert import Options, type_named
    from hybridrec.data.convert import convert as run

    options = Options(
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        types={name: type_named(kind) for name, kind in _pairs(types)},
        list_separator=list_separator,
        on_error=on_error,
        row_group_rows=row_group_rows,
        compression=compression,
    )
    with progress(f"converting to {Path(out).name}", quiet=as_json) as show:
        summary = run(
            inputs,
            out,
            format=format,
            options=options,
            force=force,
            progress=lambda done, total, rows: show(done, total, f"{rows:,} rows"),
        )
    if as_json:
        plain = {k: v for k, v in vars(summary).items() if k != "schema"}
        plain["schema"] = {field.name: str(field.type) for field in summary.schema}
        typer.echo(json.dumps(plain))
        return
    typer.echo(f"wrote {out}: {summary.rows:,} rows, {len(summary.schema)} columns, {human_bytes(summary.bytes)}")
    if summary.skipped:
        typer.echo(f"skipped {summary.skipped:,} malformed lines:", err=True)
        for example in summary.examples:
            typer.echo(f"  {example}", err=True)
        if summary.skipped > len(summary.examples):
            typer.echo("  ...", err=True)


def _pairs(types: str | None) -> list[tuple[str, str]]:
    pairs = []
    for part in (types or "").split(","):
        name, equals, kind = part.partition("=")
        if part and not (name and equals and kind):
            raise typer.BadParameter(f"--types {part!r} is not NAME=TYPE, as in price=float32")
        if part:
            pairs.append((name.strip(), kind))
    return pairs
