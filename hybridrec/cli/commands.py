"""All commands of `hybridrec`, one file each. Heavy libraries load inside the commands."""

from __future__ import annotations

from collections.abc import Callable

import typer

from hybridrec.cli.bench import bench
from hybridrec.cli.checkpoint import checkpoint
from hybridrec.cli.convert import convert
from hybridrec.cli.doctor import doctor
from hybridrec.cli.evaluate import evaluate
from hybridrec.cli.export import export
from hybridrec.cli.inspect import inspect
from hybridrec.cli.launch import launch
from hybridrec.cli.outcome import told
from hybridrec.cli.plan import plan
from hybridrec.cli.predict import predict
from hybridrec.cli.server import server
from hybridrec.cli.synth import synth
from hybridrec.cli.top import top
from hybridrec.cli.train import train

app = typer.Typer(
    name="hybridrec",
    help="Train recommender models on Parquet logs.\n\nStart with: hybridrec synth clicks.parquet",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_commands: list[Callable[..., None]] = [
    synth,
    inspect,
    convert,
    train,
    evaluate,
    predict,
    export,
    plan,
    server,
    launch,
    top,
    doctor,
]
for _command in _commands:
    app.command()(told(_command))
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(told(bench))
app.add_typer(checkpoint, name="checkpoint")


def _version(wanted: bool) -> None:
    if wanted:
        from hybridrec import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass
