"""`hybridrec predict`: scores for the rows of files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from hybridrec.cli.joined import is_quiet, join_ranks


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Files, globs, folders or URLs.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Column of the data to write beside; repeat it for several.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best, latest, or the path of one.")] = "best",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 8192,
    device: Annotated[str, typer.Option(help="cpu, or cuda to compute on a GPU.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write a score for every row, in the order of the rows.

    The file has the columns named with --column as they are in the data, then
    score, or score_LABEL for each of several labels. Labels need not be in the
    data.

    Started by torchrun, all ranks share tables and rows; rank 0 writes.

    [bold]Examples[/bold]

    hybridrec predict runs/a today.parquet --out scores.parquet

    hybridrec predict runs/a today.parquet --out scores.parquet --column user_id --column video_id

    hybridrec predict runs/a "logs/*.parquet" --out scores.parquet --checkpoint latest --force
    """
    from hybridrec.train.launch import open_data
    from hybridrec.train.load import load

    began = time.monotonic()
    join_ranks()
    loaded = load(run, checkpoint, device=device)
    opened = open_data(data, batch_size=batch_size, like=loaded.schema)
    rows = loaded.predict(opened, out=out, columns=tuple(columns or ()), force=force)
    seconds = time.monotonic() - began
    if is_quiet():
        return
    if as_json:
        typer.echo(json.dumps({"out": str(out), "rows": rows, "seconds": seconds}))
    else:
        typer.echo(f"wrote {out}: {rows:,} rows, {rows / seconds:,.0f} rows/s")
