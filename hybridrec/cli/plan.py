"""`hybridrec plan`: where the tables of a model would go on a cluster, and what a step would cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridrec.cli.progress import human_bytes

if TYPE_CHECKING:
    from hybridrec.parallel import Cluster, Constraints, Plan, Prediction, Workload

BAR = 30


def plan(
    data: Annotated[list[str], typer.Option(help="Files, globs, folders or URLs; repeat it for several.")],
    cluster: Annotated[str, typer.Option(help="NODESxDEVICESxKIND: A100-40, A100-80, H100, H200 or cpu.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.NAME=VALUE]...", help="Settings, as of train.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label column; repeat it for several labels.")] = None,
    model: Annotated[str | None, typer.Option(help="widedeep, dlrm, deepfm, dcnv2, din, mmoe or twotower.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Of the rows: rowwise_adagrad, adagrad, adam, sgd, ftrl.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that each device takes in a step.")] = 8192,
    wire: Annotated[str, typer.Option(help="Type of vectors on the wire: float32, float16, bfloat16.")] = "float32",
    gradient_wire: Annotated[str, typer.Option(help="Type of gradients on the wire.")] = "float32",
    pin: Annotated[list[str] | None, typer.Option(help="TABLE=SCHEME, or TABLE=SCHEME@0,1 with devices.")] = None,
    forbid: Annotated[list[str] | None, typer.Option(help="SCHEME, or TABLE=SCHEME, not to be used.")] = None,
    margin: Annotated[float, typer.Option(help="Share of the memory that stays free.")] = 0.1,
    servers: Annotated[int | None, typer.Option(min=1, help="Embedding servers that hold rows.")] = None,
    figure: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER of the cluster, such as memory=60e9.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Rows of the data to measure.")] = 200_000,
    save: Annotated[Path | None, typer.Option(help="File for the plan, as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(help="File for the picture, SVG: devices by tables.")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace these files if they exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan where every table goes, and predict memory, step time and the bottleneck.

    Ids per row and their duplicates are measured on a sample of the data. Each
    table is replicated, or whole on one device, or split by rows or by columns:
    whatever makes the slowest device fastest within the memory. No GPU is needed,
    and no memory for the tables. Predictions take the speeds of data sheets, so
    they are for comparing plans; a real step takes longer.

    Tables that do not fit the GPUs keep their hot rows there and the others on
    the hosts. Cold rows that a step needs cross the link to the host, at the
    speed of --figure host_bandwidth=50e9; how many, follows from how often ids
    repeat.

    Tables with where="server" lie on embedding servers, and devices have none of
    their rows; with --servers and no such table, all dynamic tables do. Their
    lookups over the network are not in the step.

    [bold]Examples[/bold]

    hybridrec plan --data clicks/ --label click --cluster 2x8xH100 --picture plan.svg

    hybridrec plan --data clicks/ --label click --cluster 1x8xA100-40 --model dlrm --optimizer adam model.dim=128

    hybridrec plan --data clicks/ --label click --cluster 1x8xH100 --servers 4

    hybridrec plan --data clicks/ --label click --cluster 1x2xcpu --pin item=row --forbid replicated --save plan.json
    """
    from hybridrec.parallel import Cluster, Wire, make_plan, predict

    machines = Cluster.parse(cluster, **_figures(figure or []))
    limits, on_wire = _constraints(pin or [], forbid or [], margin), Wire(wire, gradient_wire)
    for path in (save, picture):
        if path is not None and path.exists() and not force:
            raise ValueError(f"{path} exists; give --force to replace it, or another name")
    work = _workload(data, words or [], label or [], model, optimizer, batch_size, sample)
    made = make_plan(work, machines, limits, on_wire, servers)
    found = predict(made, work, machines, on_wire)
    title = f"{machines.name}, {batch_size:,} rows a device and step"
    if as_json:
        typer.echo(json.dumps(_answer(made, found)))
    else:
        typer.echo(_told(made, work, found, machines, margin, title, servers))
    _write(save, made.to_json() + "\n", force, quiet=as_json)
    if picture is not None:
        from hybridrec.parallel.picture import picture as draw

        _write(picture, draw(made, work, found, title) + "\n", force, quiet=as_json)


def _workload(
    data: list[str], words: list[str], label: list[str], model: str | None, kind: str | None, batch: int, sample: int
) -> Workload:
    from hybridrec.parallel import measure
    from hybridrec.parallel.declared import declared
    from hybridrec.train.launch import datasets, model_name
    from hybridrec.train.run_config import ROW_KINDS, RunConfig, optimizer_kind, with_overrides
    from hybridrec.train.settings import words_of

    files, changes = words_of(words)
    if files:
        raise ValueError(f"{files[0]!r} is no setting; name files with --data {files[0]}")
    values = with_overrides({}, changes)
    for section, given in {
        "data": {"path": data, "label": label},
        "model": {"name": model},
        "row_optimizer": {"kind": kind},
    }.items():
        kept = {name: value for name, value in given.items() if value not in (None, [])}
        values[section] = {**values.get(section, {}), **kept}
    config = RunConfig.of(values)
    rows, _ = datasets(config.data)
    row_kind, options = optimizer_kind("row_optimizer", config.row_optimizer, ROW_KINDS)
    chosen = {"name": model_name(config, len(rows.schema.of("label"))), **config.model}
    try:
        found = declared(chosen.pop("name"), rows.schema, chosen, lambda made: row_kind(made, **options))
    except TypeError as error:  # a value of another type than an option takes
        raise ValueError(str(error)) from error
    return measure(rows, found.tables, found.rules, batch_size=batch, sample=sample)


def _figures(texts: list[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise ValueError(f"--figure {text!r} is no NAME=NUMBER; write it as in memory=60e9") from None
    return found


def _constraints(pins: list[str], forbidden: list[str], margin: float) -> Constraints:
    from hybridrec.parallel import Constraints, Pin

    pinned, forbid = {}, {}
    for text in pins:
        table, _, rest = text.rpartition("=")
        scheme, _, devices = rest.partition("@")
        if not table or not all(each.strip().isdigit() for each in devices.split(",") if devices):
            raise ValueError(f"--pin {text!r} is no TABLE=SCHEME or TABLE=SCHEME@0,1; write it as in item=row")
        pinned[table] = Pin(scheme, tuple(map(int, devices.split(","))) if devices else None)
    for text in forbidden:
        table, _, scheme = text.rpartition("=")
        forbid.setdefault(table or "*", []).append(scheme)
    return Constraints(pinned, forbid, margin)


def _answer(plan: Plan, found: Prediction) -> dict[str, Any]:
    device, phase = found.bottleneck
    return {
        "plan": json.loads(plan.to_json()),
        "step_seconds": found.step,
        "bottleneck": {"device": device, "phase": phase},
        "seconds": found.seconds,
        "phases": found.phases,
        "memory": found.memory,
        "host_memory": found.host_memory,
        "server_memory": found.server_memory,
    }


def _told(
    plan: Plan, work: Workload, found: Prediction, cluster: Cluster, margin: float, title: str, servers: int | None
) -> str:
    from hybridrec.parallel.plan import aligned

    rows = [["table", "rows", "dim", "bytes", "ids", "repeated", "scheme", "devices", "why"]]
    for table, each in zip(work.tables, plan.placements, strict=True):
        ids = table.hotness * work.batch_size * cluster.world
        where = each.shown_devices() + {"host": " (hosts)", "server": " (servers)"}.get(each.where, "")
        where += "" if each.cache is None else f" ({100 * each.cache:.3g} % hot)"
        where = "servers" if each.where == "server" and servers is None else where
        size, again = human_bytes(table.rows * table.row_bytes()), f"{100 * table.duplicate_share(ids):.0f} %"
        rows.append([table.name, f"{table.rows:,}", str(table.dim), size, f"{table.hotness:.3g}", again,
                     each.scheme, where, each.reason])  # fmt: skip
    return "\n".join([title, "", aligned(rows), "", *_on_servers(found, servers), *_figures_of(found, cluster, margin)])


def _on_servers(found: Prediction, servers: int | None) -> list[str]:
    if not found.server_memory:
        return []
    size = human_bytes(max(found.server_memory))
    told = (
        f"{size} on all servers; --servers N says how much on each"
        if servers is None
        else f"{size} on each of {servers}"
    )
    return [f"on servers  {told}"]


def _figures_of(found: Prediction, cluster: Cluster, margin: float) -> list[str]:
    if not found.step:
        return ["devices     hold no rows"]
    device, phase = found.bottleneck
    least, most = human_bytes(min(found.memory)), human_bytes(max(found.memory))
    lines = [f"memory      {least} to {most} a device, of {human_bytes(cluster.memory)} with {margin:.0%} to stay free"]
    if any(found.host_memory):
        lines.append(f"on hosts    {human_bytes(max(found.host_memory))} a device at most")
    mean = sum(found.seconds) / len(found.seconds)
    lines.append(f"step        {_ms(found.step)} at least on the slowest device, {_ms(mean)} on average")
    lines.append(f"bottleneck  device {device}: {phase}")
    for name, times in found.phases.items():
        if times[device] > 0:
            lines.append(
                f"  {name:<31}{_ms(times[device]):>10}  {'█' * round(BAR * times[device] / found.step)}".rstrip()
            )
    return lines


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _write(path: Path | None, text: str, force: bool, quiet: bool) -> None:
    from hybridrec.data.output import atomic_file

    if path is not None:
        with atomic_file(path, force) as beside:
            beside.write_text(text)
        if not quiet:
            typer.echo(f"wrote {path}")
