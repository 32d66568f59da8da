"""Generate synthetic clicks, then stream them as shuffled batches: `make quickstart`.

Everything goes into ./quickstart, which git ignores. A second run uses the file that is there.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrec.cli.outcome import told
from hybridrec.cli.progress import human_bytes, progress

if TYPE_CHECKING:
    from hybridrec.data import Dataset

FOLDER = Path("quickstart")
SEED = 0


@dataclass
class Tally:
    """What has come out of the loader so far."""

    rows: int = 0
    batches: int = 0
    ids: int = 0
    bytes: int = 0
    clicks: float = 0.0
    seconds: float = 0.0


def quickstart(
    rows: Annotated[int, typer.Option(min=1, help="Rows of click data to generate.")] = 500_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data, each in another order.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 8192,
    folder: Annotated[Path, typer.Option(help="Where the data lie.")] = FOLDER,
) -> None:
    """Generate synthetic click data, and stream them with shuffle as packed batches."""
    path = folder / "clicks.parquet"
    about = prepare(path, rows)
    import hybridrec as hr  # torch comes with the first dataset

    ds = hr.data.parquet(path, label="click", batch_size=batch_size).shuffle(seed=SEED)
    for line in (f"\n{len(ds.schema)} columns, by the schema:", *_columns(ds), f"\n{ds}\n"):
        typer.echo(line)
    before = _peak_memory()
    tally = stream(ds, epochs)
    for line in _summary(tally, about, path, before):
        typer.echo(line)
    typer.echo("\nWhat to try next:")
    for command in _next_steps(path):
        typer.echo(f"  {command}")
    typer.echo("docs/data.md tells how to load data of your own.")


def prepare(path: Path, rows: int) -> dict[str, Any]:
    """Write the click data unless they are there; returns what their footer says of them."""
    from hybridrec.data.synthetic import Clicks, write

    about, wanted = _about(path), (rows, SEED, asdict(Clicks()))
    if about is not None and (about["rows"], about["seed"], about["clicks"]) == wanted:
        typer.echo(f"{path} is there: {rows:,} rows, {human_bytes(path.stat().st_size)}")
        return about
    if about is not None:
        typer.echo(f"{path} holds {about['rows']:,} other rows and is replaced")
    made_folder = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    try:
        with progress("generating clicks") as show:
            written = write(
                path,
                rows=rows,
                seed=SEED,
                force=True,
                progress=lambda done: show(done, rows, f"{done:,} rows"),
            )
    except BaseException:
        if made_folder and not any(path.parent.iterdir()):
            path.parent.rmdir()
        raise
    seconds = time.monotonic() - start
    typer.echo(f"generated {path}: {rows:,} rows, {human_bytes(written.bytes)}, in {seconds:.1f} s")
    about = _about(path)
    assert about is not None, f"{path} was just written"
    return about


def stream(ds: Dataset, epochs: int) -> Tally:
    """Iterate the dataset some times and add up what it gives."""
    total = Tally()
    for epoch in range(epochs):
        now, start = Tally(), time.perf_counter()
        with progress(f"epoch {epoch + 1} of {epochs}") as show:
            for batch in ds:
                assert batch.label is not None
                assert batch.arena is not None
                now.rows += len(batch)
                now.batches += 1
                now.ids += len(batch.ids.values)
                now.bytes += len(batch.arena)
                now.clicks += float(batch.label.sum())
                now.seconds = time.perf_counter() - start
                show(now.batches, len(ds), f"{now.rows / now.seconds:,.0f} rows/s")
        typer.echo(f"epoch {epoch + 1} of {epochs}: {now.rows:,} rows in {now.seconds:.2f} s")
        total = Tally(*(a + b for a, b in zip(vars(total).values(), vars(now).values(), strict=True)))
    return total


def _about(path: Path) -> dict[str, Any] | None:
    """What a file of synthetic clicks says of itself, None where there is no file."""
    import pyarrow.parquet as pq

    from hybridrec.data.synthetic import METADATA_KEY

    if not path.exists():
        return None
    try:
        found = (pq.read_metadata(path).metadata or {}).get(METADATA_KEY.encode())
    except (ValueError, OSError):
        found = None
    if found is None:
        raise ValueError(f"{path} exists and is no file of synthetic clicks; move it away, or choose another --folder")
    return json.loads(found)


def _columns(ds: Dataset) -> list[str]:
    """The schema in a few lines."""
    ids = ds.schema.of("id")
    parts = {
        "ids": [feature.name for feature in ids if not feature.ragged],
        "lists of ids": [feature.name for feature in ids if feature.ragged],
        "dense": [feature.name for feature in ds.schema.of("dense")],
        "label": [feature.name for feature in ds.schema.of("label")],
    }
    shown = {
        kind: ", ".join(names if len(names) < 4 else [names[0], "...", names[-1]]) for kind, names in parts.items()
    }
    return [f"  {len(parts[kind]):>2} {kind:<13} {names}" for kind, names in shown.items()]


def _summary(tally: Tally, about: dict[str, Any], path: Path, before: float) -> list[str]:
    best = "undefined" if about["best_auc"] is None else f"{about['best_auc']:.4f}"
    facts = {
        "rows": f"{tally.rows:,} in {tally.batches:,} batches, {tally.seconds:.1f} s",
        "speed": f"{tally.rows / tally.seconds:,.0f} rows/s, {tally.ids / tally.seconds:,.0f} ids/s",
        "batches": f"{human_bytes(tally.bytes)} of ids, dense values and labels",
        "mean label": f"{tally.clicks / tally.rows:.4f}",
        "best AUC": f"{best} (of the planted click model; no model can expect more)",
        "peak memory": f"{human_bytes(_peak_memory())} ({human_bytes(before)} before the first batch)",
        "data": f"{path} ({human_bytes(path.stat().st_size)})",
    }
    return ["", *(f"{name:<12} {fact}" for name, fact in facts.items())]


def _next_steps(path: Path) -> list[str]:
    """Commands that work from here, with the tools beside this Python."""
    tools = Path(sys.executable).parent
    tools = tools.relative_to(Path.cwd()) if tools.is_relative_to(Path.cwd()) else tools
    return [
        f"{tools / 'hybridrec'} inspect {path}",
        f"{tools / Path(sys.executable).name} -m recipes.quickstart --rows 2000000 --epochs 1",
        "make test",
    ]


def _peak_memory() -> float:
    """Bytes that this process has had resident at most."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count what the process that started this one had
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * float(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no half-written file stays
    typer.run(told(quickstart))
