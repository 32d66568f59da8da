"""`hybridrec train`: from files to a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrec.cli.joined import join_ranks

if TYPE_CHECKING:
    from hybridrec.train.checkpoint import Manifest
    from hybridrec.train.trainer import Trainer


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATA]... [SECTION.NAME=VALUE]...", help="Files, globs, folders or URLs; and settings."
        ),
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label column; repeat it for several labels.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of sample weights.")] = None,
    valid: Annotated[str | None, typer.Option(help="Files to validate on, or the share of the last rows: 0.1.")] = None,
    model: Annotated[str | None, typer.Option(help="widedeep, dlrm, deepfm, dcnv2, din, mmoe or twotower.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, or cuda to train on a GPU.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; else the next free runs/MODEL-N.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Times to go through the data (1).")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to stop after.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows of a batch; else by the data's size.")] = None,
    servers: Annotated[str | None, typer.Option(help="Servers that hold rows: host:7000,host:7001.")] = None,
    staleness: Annotated[int | None, typer.Option(min=0, help="Steps that rows on servers may be behind (0).")] = None,
    server_token_file: Annotated[str | None, typer.Option(help="File with the token of the servers.")] = None,
    server_ca: Annotated[str | None, typer.Option(help="Certificate that servers are signed by, for TLS.")] = None,
    config: Annotated[Path | None, typer.Option(help="run.toml, or the config.json of another run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, if there is one.")] = False,
    resume_with: Annotated[str | None, typer.Option(hidden=True, help="What goes on with the run instead.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and no progress.")] = False,
) -> None:
    """Train a model on files and keep everything in a folder: checkpoints, metrics, a report.

    Columns, batch size and model are inferred from the data where they are not
    stated. Every setting has a dotted name: model.dim=32, optimizer.lr=0.001,
    row_optimizer.kind=adagrad, train.clip_norm=1.0, train.bf16=true. A file given
    with --config holds the same in sections; the command line comes after it.

    Ctrl-C saves and stops; the same command with --resume goes on with the very
    next batch.

    Started by torchrun, it trains on all ranks together: each reads its share of
    the rows in batches of --batch-size, or, with data.shard=batch, its part of
    every batch. A rank that fails ends all of them, one that stalls after
    train.timeout seconds (300).

    With --device cuda, tables that do not all fit the card have their hot rows
    there and the others on the host; a line says which, and
    model.tables='{"item"={cache=0.2}}' says otherwise.

    With --servers, rows of dynamic tables, or of those that say where = "server",
    lie on the servers that hybridrec server has started there; with --staleness,
    lookups go that many steps ahead.

    [bold]Examples[/bold]

    hybridrec train clicks.parquet --label click --valid 0.1 --out runs/a

    hybridrec train "logs/day=*/*.parquet" --label click --label like --model mmoe --valid last_day.parquet

    hybridrec train --config run.toml model.dim=32 train.epochs=2 --out runs/b

    hybridrec train --out runs/b --resume

    hybridrec train clicks.parquet --label click --servers box1:7000,box2:7000 --staleness 4

    torchrun --nproc-per-node 4 --max-restarts 3 -m hybridrec train clicks.parquet --label click --out runs/c --resume
    """
    import torch

    from hybridrec.train.launch import launch
    from hybridrec.train.run_config import RunConfig, read_config, with_overrides
    from hybridrec.train.settings import words_of
    from hybridrec.train.together import is_main, on_main, path_on_main

    data, changes = words_of(words or [])
    ranks = join_ranks(_timeout(config or (out / "config.json" if resume and out is not None else None), changes))
    if config is None and resume and out is not None:
        config = path_on_main(ranks, lambda: _config_of(out, data, servers))
    values = with_overrides({} if config is None else read_config(config), changes)
    flags = {"path": data, "label": label, "weight": weight, "valid": valid, "batch_size": batch_size}
    _set(values, "data", flags)
    _set(values, "model", {"name": model, "device": device})
    _set(values, "train", {"epochs": epochs, "steps": steps, "progress": "none" if quiet or as_json else None})
    named = None if servers is None else [each.strip() for each in servers.split(",") if each.strip()]
    told = {"addresses": named, "staleness": staleness, "token_file": server_token_file, "ca": server_ca}
    _set(values, "servers", told)
    asked = RunConfig.of(values)
    values["out"] = str(out) if out is not None else asked.out or on_main(ranks, lambda: _free_folder(asked))
    made = launch(RunConfig.of(values))
    made.trainer.about |= {} if resume_with is None else {"resume_with": resume_with}
    quiet = quiet or not is_main(ranks)
    if not (quiet or as_json):
        typer.echo(_about(made.trainer), err=True)
        for file in made.train.lost:
            typer.echo(f"left out, as it cannot be read: {file}", err=True)
    try:
        made.trainer.fit(
            made.train, made.valid, epochs=made.epochs, steps=made.steps, resume="auto" if resume else None
        )
    except (FloatingPointError, torch.OutOfMemoryError) as error:
        raise ValueError(str(error)) from None
    if is_main(ranks):
        result = _result(made.trainer)
        typer.echo(json.dumps(result) if as_json else _lines(result))


def _timeout(config: Path | None, changes: list[str]) -> float | None:
    """How long ranks wait for each other, which must be known before they join."""
    from hybridrec.train.run_config import RunConfig, read_config, with_overrides

    stated = read_config(config) if config is not None and config.exists() else {}
    return RunConfig.of({"train": with_overrides(stated, changes).get("train", {})}).options().timeout


def _config_of(out: Path, data: list[str], servers: str | None) -> Path | None:
    """The configuration of the run to go on with; without one, the data must be named."""
    if (out / "config.json").exists():
        launched = json.loads((out / "config.json").read_text()).get("resume_with")
        if launched is not None and servers is None:
            raise ValueError(
                f"the servers of {out} were started with it, and are gone; go on with {launched}, or name servers that "
                "run: --servers host:7000,host:7001 --server-token-file FILE"
            )
        return out / "config.json"
    if not data:
        raise ValueError(
            f"{out} holds no run to go on with (there is no {out / 'config.json'}); name the data and the label to "
            f"begin one: hybridrec train DATA --label NAME --out {out} --resume"
        )
    return None


def _set(values: dict[str, Any], section: str, given: dict[str, Any]) -> None:
    """Put what was given on the command line over the configuration."""
    kept = {name: value for name, value in given.items() if value not in (None, [])}
    if kept and isinstance(values.get(section, {}), dict):  # else the configuration says what is wrong
        values[section] = {**values.get(section, {}), **kept}


def _free_folder(config: Any) -> str:
    from hybridrec.train.launch import model_name

    name, number = model_name(config, len(config.data.label)), 1
    while Path(f"runs/{name}-{number}").exists():
        number += 1
    return f"runs/{name}-{number}"


def _about(trainer: Trainer) -> str:
    return trainer.model.summary().splitlines()[0]  # pyright: ignore[reportCallIssue] (made by hybridrec.models)


def _result(trainer: Trainer) -> dict[str, Any]:
    from hybridrec.train.checkpoint import Checkpoints, read_manifest
    from hybridrec.train.history import numbers

    run, final = trainer.run, trainer.history.final
    assert run is not None, "the command gives every run a folder"
    metrics = {} if final is None else numbers(final)
    best = Checkpoints(run.checkpoints).best()
    report = run.path / "report.html"
    return {
        "run": str(run.path),
        "steps": trainer.step,
        "rows": trainer.state.rows,
        "metrics": metrics,
        "best": None if best is None else _best(read_manifest(best)),
        "stopped": trainer.state.stopped,
        "report": str(report) if report.exists() else None,
    }


def _best(manifest: Manifest) -> dict[str, Any]:
    return {"step": manifest.step, "metrics": dict(manifest.metrics)}


def _lines(result: dict[str, Any]) -> str:
    lines = [f"trained {result['steps']:,} steps, {result['rows']:,} rows; run in {result['run']}"]
    best, used = result["best"], "predict and evaluate use it"
    if result["metrics"]:
        is_best = best is not None and best["step"] == result["steps"]
        lines.append(f"last validation: {_shown(result['metrics'])}" + (f" (the best; {used})" if is_best else ""))
    if best is not None and best["step"] != result["steps"]:
        lines.append(f"best validation: {_shown(best['metrics'])} (step {best['step']:,}; {used})")
    lines += [f"report: {result['report']}"] if result["report"] else []
    return "\n".join([*lines, f"next: hybridrec predict {result['run']} DATA --out scores.parquet"])


def _shown(metrics: dict[str, float | None]) -> str:
    return "  ".join(f"{name} {'nan' if value is None else format(value, '.4f')}" for name, value in metrics.items())
