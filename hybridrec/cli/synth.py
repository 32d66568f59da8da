"""`hybridrec synth`: click data with a known best AUC."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hybridrec.cli.progress import human_bytes, progress

_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def _count(text: str | int) -> int:
    """2000000, 2_000_000, 2,000,000 or 2M."""
    plain = str(text).lower().replace(",", "").replace("_", "")
    unit = _UNITS.get(plain[-1:], 1)
    try:
        rows = float(plain[:-1]) * unit if unit > 1 else int(plain)
    except ValueError:
        rows = -1
    if rows < 0 or rows != int(rows):
        raise typer.BadParameter(f"{text!r} is no number of rows; write 2000000 or 2M (k, M, B)")
    return int(rows)


def synth(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Parquet file to write; with --files above 1 a folder.")],
    rows: Annotated[int, typer.Option(parser=_count, metavar="N", help="Rows: 2000000, or 2M (k, M, B).")] = 1_000_000,
    seed: Annotated[
        int, typer.Option(min=0, help="Same seed and columns: same data, and fewer rows are a prefix.")
    ] = 0,
    files: Annotated[int, typer.Option(min=1, max=200, help="Spread the rows over this many files.")] = 1,
    ids: Annotated[int, typer.Option(min=1, help="Id columns (int64, power-law popularity).")] = 26,
    dense: Annotated[int, typer.Option(min=0, help="Dense columns (float32).")] = 13,
    histories: Annotated[int, typer.Option(min=0, help="History columns (list<int64>, ragged).")] = 2,
    vocabulary: Annotated[int, typer.Option(min=10, help="Distinct ids of the largest id column.")] = 200_000,
    history_length: Annotated[
        int, typer.Option(min=1, help="Mean length of a history; the longest is 4 times that.")
    ] = 10,
    auc: Annotated[float, typer.Option(help="Best AUC to plant, from 0.5 to 0.99.")] = 0.80,
    click_rate: Annotated[float, typer.Option(help="Share of clicks, from 0.01 to 0.99.")] = 0.25,
    row_group_rows: Annotated[int, typer.Option(min=1, help="Rows per row group.")] = 131_072,
    compression: Annotated[str, typer.Option(help="zstd, snappy, lz4, gzip, brotli or none.")] = "zstd",
    probability: Annotated[
        bool, typer.Option("--probability", help="Add the true click probability as a column.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and no progress.")] = False,
) -> None:
    """Write synthetic click data whose best possible AUC is known.

    Columns: click (the label), id_1 ... id_26, dense_1 ... dense_13, history_1,
    history_2. Clicks are drawn from a planted model: effects of single ids, pairs
    of ids, dense values, and histories that meet the row's own id.

    The best possible AUC that is printed is the one of the true probabilities
    against the labels as drawn; no model can expect more. It is also stored in
    the metadata of every file, under hybridrec.synthetic.

    The rows depend on the seed and the columns alone, not on --files or
    --row-group-rows. Memory does not grow with the rows.

    [bold]Examples[/bold]

    hybridrec synth clicks.parquet --rows 2M

    hybridrec synth clicks --rows 1B --files 100 --seed 7

    hybridrec synth small.parquet --rows 10k --ids 4 --dense 2 --histories 1 --vocabulary 1000
    """
    from hybridrec.data.synthetic import Clicks, write

    clicks = Clicks(ids, dense, histories, vocabulary, history_length, auc, click_rate)
    start = time.monotonic()
    with progress(f"writing {out.name}", quiet=as_json) as show:
        summary = write(
            out,
            rows=rows,
            seed=seed,
            clicks=clicks,
            files=files,
            row_group_rows=row_group_rows,
            compression=compression,
            probability=probability,
            force=force,
            progress=lambda done: show(done, rows, f"{done:,} rows"),
        )
    if as_json:
        typer.echo(json.dumps(asdict(summary)))
        return
    seconds = time.monotonic() - start
    where = str(out) if files == 1 else f"{out} ({files} files)"
    typer.echo(f"wrote {where}: {summary.rows:,} rows, {human_bytes(summary.bytes)}, {rows / seconds:,.0f} rows/s")
    if summary.best_auc is None:
        typer.echo("best possible AUC: undefined, the rows are all clicks or all not")
    else:
        typer.echo(
            f"best possible AUC: {summary.best_auc:.4f} (true probabilities against the labels as drawn; "
            f"also in the file's metadata), click rate {100 * (summary.click_rate or 0):.2f} %"
        )
