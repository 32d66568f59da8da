"""`hybridrec checkpoint show|verify|tables`: what is in checkpoints, whether they are sound, and their tables."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybridrec.cli.outcome import told
from hybridrec.cli.progress import human_bytes

if TYPE_CHECKING:
    from hybridrec.train.checkpoint import Manifest
    from hybridrec.train.checkpoint.table_info import TableInfo

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A checkpoint, a folder of checkpoints, or the folder of a run.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per checkpoint.")]

GIVE = "give the folder of a run, such as runs/a, or a checkpoint, such as runs/a/checkpoints/step-000000100"

checkpoint = typer.Typer(no_args_is_help=True, help="Look at checkpoints: show, verify, tables.")


def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show what checkpoints hold: step, metrics, tables, weights, optimizers.

    Of a folder with several, one line each; it reads manifests and headers, not
    the rows.

    [bold]Examples[/bold]

    hybridrec checkpoint show runs/a

    hybridrec checkpoint show runs/a/checkpoints/step-000001200 --json | jq .metrics
    """
    from hybridrec.train.checkpoint import read_manifest

    paths = _checkpoints(folder)
    if as_json:
        for path in paths:
            typer.echo(json.dumps({"path": str(path), **read_manifest(path).to_json()}, ensure_ascii=False))
    elif paths == [folder]:
        _show_one(folder, read_manifest(folder))
    else:
        best = next((path for path in reversed(paths) if _is_best(path)), None)
        titles = ["checkpoint", "written", "bytes", "tables", "rows", "metrics"]
        _print_table(titles, [[path.name, *_facts(path, path == best)] for path in paths], right=(2, 3, 4))


def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read checkpoints and compare every file with its checksum; exit code 1 if something is wrong.

    [bold]Examples[/bold]

    hybridrec checkpoint verify runs/a

    hybridrec checkpoint verify runs/a/checkpoints/step-000001200
    """
    from hybridrec.train.checkpoint import verify as problems_of

    wrong = 0
    for path in _checkpoints(folder):
        problems = problems_of(path)
        wrong += bool(problems)
        if as_json:
            typer.echo(json.dumps({"path": str(path), "problems": [asdict(problem) for problem in problems]}))
            continue
        typer.echo(f"{path}: {'sound' if not problems else 'damaged'}")
        for problem in problems:
            typer.echo(f"  {problem}")
    if wrong:
        raise typer.Exit(1)


def tables(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write to.")],
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table; may be repeated.")] = None,
) -> None:
    """Write whole tables of a checkpoint as one Arrow file each, in however many parts they were saved.

    Of several checkpoints the one written last is taken. Rows are read and written
    a few at a time, so that a table may be larger than memory.

    [bold]Examples[/bold]

    hybridrec checkpoint tables runs/a --out tables

    hybridrec checkpoint tables runs/a/checkpoints/step-000001200 --table embeddings.item --out tables
    """
    from hybridrec.train.checkpoint import export_tables, read_manifest

    path = _checkpoints(folder)[-1]
    files = export_tables(path, out, table or None)
    saved = read_manifest(path).tables
    for name, file in files.items():
        typer.echo(f"{file}: {saved[name].rows:,} rows of {name}, {human_bytes(file.stat().st_size)}")


checkpoint.command()(told(show))
checkpoint.command()(told(verify))
checkpoint.command()(told(tables))


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that a folder stands for, in the order in which they were written."""
    for inside in (folder, folder / "checkpoints"):
        found = [path for path in inside.glob("step-*") if path.is_dir() and path.suffix != ".part"]
        if found:
            return sorted(found, key=_number)
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; {GIVE}")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; {GIVE}")
    if not (folder / "manifest.json").exists() and not (folder / "dense.safetensors").exists():
        raise ValueError(f"{folder} holds no checkpoint; {GIVE}")
    return [folder]


def _number(path: Path) -> tuple[int, str]:
    from hybridrec.train.checkpoint import CheckpointError, read_manifest

    try:
        return read_manifest(path).number, path.name
    except CheckpointError:
        return 0, path.name


def _is_best(path: Path) -> bool:
    """Whether it was the best when it was written; of several, the last one still is."""
    from hybridrec.train.checkpoint import CheckpointError, read_manifest

    try:
        return read_manifest(path).best
    except CheckpointError:
        return False


def _facts(path: Path, is_best: bool) -> list[str]:
    from hybridrec.train.checkpoint import CheckpointError, read_manifest

    try:
        manifest = read_manifest(path)
    except CheckpointError:
        return ["?", "?", "?", "?", "cannot be read; see hybridrec checkpoint verify"]
    rows = sum(table.rows for table in manifest.tables.values())
    metrics = _metrics(manifest) + (" (best)" if is_best else "")
    count = len(manifest.tables)
    return [manifest.created, human_bytes(manifest.bytes), str(count), f"{rows:,}", metrics.strip()]


def _metrics(manifest: Manifest) -> str:
    return "  ".join(
        f"{name} {'nan' if value is None else format(value, '.6g')}" for name, value in manifest.metrics.items()
    )


def _show_one(path: Path, manifest: Manifest) -> None:
    best = ", the best so far" if manifest.best else ""
    typer.echo(f"{path}: step {manifest.step:,}{best}, {human_bytes(manifest.bytes)}")
    by = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    together = f", on {manifest.ranks} ranks" if manifest.ranks > 1 else ""
    typer.echo(f"written {manifest.created} by {by}{together}")
    if manifest.metrics:
        typer.echo(f"metrics: {_metrics(manifest)}")
    if manifest.tables:
        typer.echo()
        rows = [_table_row(name, info, manifest) for name, info in manifest.tables.items()]
        titles = ["table", "rows", "of", "dim", "dtype", "optimizer state", "clock", "bytes", "parts"]
        _print_table(titles, rows, right=(1, 2, 3, 6, 7, 8))
    for line in _rest(path):
        typer.echo(line)


def _table_row(name: str, info: TableInfo, manifest: Manifest) -> list[str]:
    size = f"≤ {info.capacity:,}" if info.capacity is not None else f"{info.size:,}"
    state = "" if info.rule is None else " ".join([info.rule.kind, *info.rule.names])
    taken = human_bytes(sum(manifest.files[part.file].bytes for part in info.parts))
    return [
        name,
        f"{info.rows:,}",
        size,
        str(info.dim),
        info.dtype,
        state,
        f"{info.clock:,}",
        taken,
        str(len(info.parts)),
    ]


def _rest(path: Path) -> list[str]:
    """What is there beside tables."""
    from safetensors import safe_open

    with safe_open(path / "dense.safetensors", "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (no mapping)
    numbers = sum(map(math.prod, shapes))
    trees = json.loads((path / "state.json").read_text(encoding="utf-8"))
    optimizers = [f"{name} ({each['kind']})" for name, each in trees["optimizers"].items()]
    return [
        "",
        f"dense: {len(shapes)} tensors, {numbers:,} numbers",
        f"optimizers: {', '.join(optimizers) or 'none'}",
        f"state: {', '.join(trees['state']) or 'none'}",
    ]


def _print_table(titles: list[str], rows: list[list[str]], right: tuple[int, ...]) -> None:
    """Aligned columns, those in `right` to the right."""
    widths = [max(len(line[i]) for line in (titles, *rows)) for i in range(len(titles))]
    for place, line in enumerate((titles, *rows)):
        cells = [
            f"{cell:>{width}}" if i in right else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        typer.secho("  ".join(cells).rstrip(), bold=place == 0)
