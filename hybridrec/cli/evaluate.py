"""`hybridrec evaluate`: how good a trained model is on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hybridrec.cli.joined import is_quiet, join_ranks


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Files, globs, folders or URLs with labels.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or the path of one.")] = "best",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 8192,
    device: Annotated[str, typer.Option(help="cpu, or cuda to compute on a GPU.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the loss and the metrics of a run on other data.

    The data are read by the schema of the run: same columns, same transforms.
    Started by torchrun, all ranks share tables and rows.

    [bold]Examples[/bold]

    hybridrec evaluate runs/a test.parquet

    hybridrec evaluate runs/a "logs/day=2*/*.parquet" --checkpoint latest

    hybridrec evaluate runs/a test.parquet --json | jq .auc
    """
    from hybridrec.train.launch import open_data
    from hybridrec.train.load import load

    join_ranks()
    loaded = load(run, checkpoint, device=device)
    found = loaded.evaluate(open_data(data, batch_size=batch_size, schema=loaded.schema))
    if is_quiet():
        return
    if as_json:
        numbers = {name: None if value != value else value for name, value in found.items()}
        typer.echo(json.dumps({"run": str(run), "checkpoint": loaded.checkpoint.name, **numbers}))
        return
    wide = max(map(len, found))
    typer.echo("\n".join(f"{name:<{wide}}  {value:.6f}" for name, value in found.items()))
