"""Generate synthetic clicks, then train a DeepFM on them: `make quickstart`.

Everything goes into ./quickstart, which git ignores. A second run uses the data that is there, goes on with a training
that was interrupted, and trains anew where one had come to its end.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrec.cli.outcome import told
from hybridrec.cli.progress import human_bytes, progress

if TYPE_CHECKING:
    from hybridrec.data import Dataset
    from hybridrec.train import Trainer

FOLDER = Path("quickstart")
SEED = 0
HELD_OUT = 0.1  # the share of the rows, the last ones, that tell how good the model is
OUR_OWN = "quickstart"  # the entry of a run's config.json that says what it was trained on


def quickstart(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of click data to generate.")] = 2_000_000,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data, each in another order.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 2048,
    folder: Annotated[Path, typer.Option(help="Where data and run lie.")] = FOLDER,
) -> None:
    """Generate synthetic click data, train a DeepFM on them, and tell how close it comes to the best possible."""
    path, out = folder / "clicks.parquet", folder / "run"
    asked = {"rows": rows, "epochs": epochs, "batch_size": batch_size}
    prepare(path, rows)
    resume = make_way(out, asked)
    import hybridrec as hr  # torch comes with the first dataset

    ds = hr.data.parquet(path, label="click", batch_size=batch_size)
    for line in (f"\n{len(ds.schema)} columns, by the schema:", *_columns(ds), ""):
        typer.echo(line)
    train, held_out = ds.split(1 - HELD_OUT)
    trainer = make_trainer(train, out, asked)
    typer.echo(f"training {trainer.model.summary().splitlines()[0]}")  # pyright: ignore[reportCallIssue] (a Model)
    began = time.monotonic()
    try:
        trainer.fit(train.shuffle(seed=SEED), held_out, epochs=epochs, resume="auto" if resume else None)
    except KeyboardInterrupt:
        typer.echo("run the same command again to go on from there", err=True)
        raise
    seconds = time.monotonic() - began
    best = best_auc(range(rows - held_out.num_rows, rows))
    for line in _summary(trainer, held_out.num_rows, best, seconds, path):
        typer.echo(line)
    typer.echo("\nWhat to try next:")
    for command in _next_steps(path, out):
        typer.echo(f"  {command}")
    typer.echo("docs/training.md tells how to train on data of your own.")


def prepare(path: Path, rows: int) -> None:
    """Write the click data unless they are there."""
    from hybridrec.data.synthetic import Clicks, write

    about, wanted = _about(path), (rows, SEED, asdict(Clicks()))
    if about is not None and (about["rows"], about["seed"], about["clicks"]) == wanted:
        typer.echo(f"{path} is there: {rows:,} rows, {human_bytes(path.stat().st_size)}")
        return
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


def make_way(out: Path, asked: dict[str, Any]) -> bool:
    """Whether the run that is there goes on; one that is over, or was asked for otherwise, is removed."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        found = json.loads((out / "config.json").read_text())[OUR_OWN]
    except (OSError, ValueError, KeyError, TypeError):  # no file, no JSON, no such entry, no mapping
        raise ValueError(
            f"{out} exists and is no run of the quickstart; move it away, or choose another --folder"
        ) from None
    from hybridrec.train.run_directory import RunDirectory

    over = any(record["kind"] == "final" for record in RunDirectory(out).records())
    if found == asked and not over:
        typer.echo(f"{out} holds a run that was interrupted, which goes on")
        return True
    typer.echo(
        f"{out} holds a run that {'has ended' if over else 'was asked for otherwise'} and is replaced: training anew"
    )
    shutil.rmtree(out)
    return False


def make_trainer(train: Dataset, out: Path, asked: dict[str, Any]) -> Trainer:
    """A DeepFM under a Trainer, with their defaults; many metrics and records, for the report."""
    import hybridrec as hr
    from hybridrec.train import TrainOptions, seed_everything

    seed_everything(SEED)  # before the layers are drawn
    steps = len(train)
    options = TrainOptions(seed=SEED, log_every=max(1, steps // 40), validate_every=-(-steps // 4))
    metrics = ("auc", "logloss", "ne", "calibration")
    trainer = hr.Trainer(hr.models.DeepFM(train.schema, seed=SEED), out=out, metrics=metrics, options=options)
    trainer.about[OUR_OWN] = asked
    return trainer


def best_auc(rows: range) -> float | None:
    """The AUC of the true click probabilities of these rows against their labels: no model can expect more."""
    from hybridrec.data.synthetic.auc import StreamingAuc
    from hybridrec.data.synthetic.clicks import BLOCK, Clicks, Planted

    planted, auc = Planted(Clicks(), SEED), StreamingAuc()
    for number in range(rows.start // BLOCK, -(-rows.stop // BLOCK)):
        block = planted.block(number)
        kept = slice(max(rows.start - number * BLOCK, 0), rows.stop - number * BLOCK)
        auc.add(block.probability[kept], block.click[kept])
    return auc.value()


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


def _summary(trainer: Trainer, held_out: int, best: float | None, seconds: float, path: Path) -> list[str]:
    final, run = trainer.history.final, trainer.run
    assert final is not None, "a fit that ends leaves a final record"
    assert run is not None, "the trainer was given a folder"
    reached = final["auc"]
    facts = {"trained": f"{trainer.state.rows:,} rows in {trainer.step:,} steps; this time {seconds:.1f} s"}
    facts["AUC"] = f"{reached:.4f} on {held_out:,} rows that were held out"
    if best is not None and best > 0.5:
        share = (reached - 0.5) / (best - 0.5)
        facts["best AUC"] = f"{best:.4f} on the same rows, by the planted click model; no model can expect more"
        facts["reached"] = f"{100 * share:.1f} % of the way from chance (0.5) to the best"
    facts["peak memory"] = human_bytes(_peak_memory())
    facts["data"] = f"{path} ({human_bytes(path.stat().st_size)})"
    facts["report"] = f"{run.path / 'report.html'} (open it in a browser)"
    return ["", *(f"{name:<12} {fact}" for name, fact in facts.items())]


def _next_steps(path: Path, out: Path) -> list[str]:
    """Commands that work from here, with the tools beside this Python."""
    tools = Path(sys.executable).parent
    tools = tools.relative_to(Path.cwd()) if tools.is_relative_to(Path.cwd()) else tools
    hybridrec = tools / "hybridrec"
    return [
        f"{hybridrec} evaluate {out} {path}",
        f"{hybridrec} predict {out} {path} --out {out.parent / 'scores.parquet'} --column id_26 --force",
        f"{hybridrec} export {out} --out {out.parent / 'served'}",
        f"{hybridrec} train {path} --label click --valid 0.1 --model dcnv2 --out {out.parent / 'dcnv2'}",
        f"{tools / Path(sys.executable).name} -m recipes.quickstart --rows 5000000",
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
