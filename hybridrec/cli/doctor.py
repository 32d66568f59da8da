"""`hybridrec doctor`: what is installed, and what works."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hybridrec.cli.progress import human_bytes


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print versions, the native core, threads, and whether GPU kernels are on, or why not.

    Exits with 1 where something that is needed does not work.

    [bold]Examples[/bold]

    hybridrec doctor

    hybridrec doctor --json

    hybridrec doctor --json | jq .gpu
    """
    from hybridrec.train.environment import environment

    found = environment()
    typer.echo(json.dumps(found) if as_json else "\n".join(_lines(found)))
    if not found["native"]["loaded"]:
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> list[str]:
    machine, native, gpu, threads = found["machine"], found["native"], found["gpu"], found["threads"]
    memory = "" if machine["memory_bytes"] is None else f", {human_bytes(machine['memory_bytes'])} of memory"
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items() if name != "hybridrec")
    core = f"works, kernels for {native['instructions']}" if native["loaded"] else f"broken: {native['why']}"
    kernels = ", ".join(gpu["devices"]) if gpu["kernels"] == "on" else gpu["why"]
    facts = {
        "hybridrec": found["packages"]["hybridrec"],
        "python": f"{found['python']['version']} ({found['python']['path']})",
        "packages": packages,
        "system": f"{machine['system']}, {machine['cpu']}, {machine['cores']} cores{memory}",
        "native core": core,
        "threads": f"{threads['torch']} of {threads['cores']} cores (torch.set_num_threads, OMP_NUM_THREADS)",
        "GPU kernels": f"{gpu['kernels']}: {kernels}",
    }
    return [f"{name:<12} {fact}" for name, fact in facts.items()]
