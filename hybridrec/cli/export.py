"""`hybridrec export`: a trained model as plain files, to serve without the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hybridrec.cli.progress import human_bytes


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist, or be empty.")],
    checkpoint: Annotated[str, typer.Option(help="best, latest, or the path of one.")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write the model of a run as files that hybridrec.serve.load reads.

    The dense part is a program of torch.export, the tables are Arrow files, the
    schema and the manifest are JSON. The scores are those of hybridrec predict.

    [bold]Examples[/bold]

    hybridrec export runs/a --out served

    hybridrec export runs/a --out served --checkpoint latest
    """
    from hybridrec.serve.export import export as write
    from hybridrec.serve.manifest import read
    from hybridrec.train.load import load
    from hybridrec.train.losses import LOSSES

    trained = load(run, checkpoint)
    loss = LOSSES.get(trained.config["loss"], LOSSES["bce"])
    write(trained.model, out, schema=trained.schema, scores=loss.scores, bf16=trained.config["train"]["bf16"])
    found = read(out)
    tables = [table for entry in found.collections for table in entry.tables]
    rows = sum(table.rows for table in tables)
    size = sum(entry.bytes for entry in found.files.values())
    if as_json:
        told = {"out": str(out), "model": found.model, "tables": len(tables), "rows": rows, "bytes": size}
        typer.echo(json.dumps(told | {"checkpoint": str(trained.checkpoint)}))
    else:
        typer.echo(f"wrote {out}: {found.model}, {len(tables)} tables, {rows:,} rows, {human_bytes(size)}")
