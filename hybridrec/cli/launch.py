"""`hybridrec launch`: servers and trainers of one run on this machine, from one file."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def launch(
    config: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run; see below.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.NAME=VALUE]...", help="Changes of what the file says.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run, if the file does not name one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder, if any.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress of trainers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, and no progress.")] = False,
) -> None:
    """Start embedding servers and trainers on this machine, and start again what dies.

    The file has the sections of `hybridrec train --config` and two more:

    \\[servers] count, staleness, path, memory, port, threads, deadline, restarts

    \\[trainers] count, threads, restarts

    A server that dies is started again at once with its rows, which live in files
    (in OUT/servers, or in servers.path); the trainers go on meanwhile. Trainers
    that die are started again from the last checkpoint.

    The run ends when one server has died more than servers.restarts (10) times
    within a minute, or the trainers more than trainers.restarts (3) times without
    a new checkpoint. Ctrl-C saves and stops. The exit code is that of the
    trainers.

    [bold]Examples[/bold]

    hybridrec launch run.toml

    hybridrec launch run.toml servers.count=4 trainers.count=2 train.epochs=2 --out runs/b

    hybridrec launch run.toml --resume
    """
    from hybridrec.launch.child import Output
    from hybridrec.launch.config import LAUNCH_SECTIONS, LaunchConfig
    from hybridrec.launch.roles import RunRoles
    from hybridrec.launch.supervisor import Limits, Supervisor
    from hybridrec.train.checkpoint import Checkpoints
    from hybridrec.train.launch import check
    from hybridrec.train.run_config import RunConfig, read_config, with_overrides
    from hybridrec.train.run_directory import RunDirectory

    made = LaunchConfig.of(with_overrides(read_config(config), settings or [], LAUNCH_SECTIONS))
    folder = out or made.run.get("out")
    if folder is None:
        raise ValueError(f'{config} names no folder for the run; write out = "runs/a" at its top, or give --out')
    run, again = RunDirectory(folder), _again(config, settings or [], out)
    latest = Checkpoints(run.checkpoints).latest()
    if latest is not None and not resume:
        raise ValueError(
            f"{run.path} holds a run already (its newest checkpoint is {latest.name}); go on with it: {again}; or give "
            "another folder as --out"
        )
    check(RunConfig.of(made.run))  # servers take seconds to start, and trainers seconds more
    run.prepare()
    flags = [flag for flag, given in (("--resume", resume), ("--quiet", quiet), ("--json", as_json)) if given]
    trainers = ["trainer"] if made.trainers.count == 1 else [f"trainer {rank}" for rank in range(made.trainers.count)]
    width = max(len(trainers[-1]), len(f"server {made.servers.count - 1}"))
    output = Output(width, trainers[0] if as_json else None)
    limits = Limits(made.servers.restarts, made.trainers.restarts)

    def newest() -> str | None:
        found = Checkpoints(run.checkpoints).latest()
        return None if found is None else str(found)

    with tempfile.TemporaryDirectory(prefix="hybridrec-launch-") as private:
        roles = RunRoles(made, run.path, Path(private), again, tuple(flags))
        code = Supervisor(roles, limits, output, newest).run()
    if code:
        raise typer.Exit(code)


def _again(config: Path, settings: list[str], out: Path | None) -> str:
    """The command that goes on with the run.

    >>> _again(Path("run.toml"), ["servers.count=4"], Path("runs/b"))
    'hybridrec launch run.toml servers.count=4 --out runs/b --resume'
    """
    folder = [] if out is None else ["--out", str(out)]
    return shlex.join(["hybridrec", "launch", str(config), *settings, *folder, "--resume"])
