"""`hybridrec top`: what embedding servers are doing, live."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from hybridrec.server.client import Servers


def top(
    servers: Annotated[str, typer.Option(help="HOST:PORT of every server, separated by commas.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    token_file: Annotated[Path | None, typer.Option(help="File with the token of the servers.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Certificate that the servers' are signed with, PEM.")] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Use TLS, with the certificates that this machine trusts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Look once, and print one JSON object.")] = False,
) -> None:
    """Watch embedding servers: lookups, rows, staleness, queues and memory of each.

    Ctrl-C ends it; the servers go on. With a token or TLS, give the same as
    the trainers do.

    [bold]Examples[/bold]

    hybridrec top --servers box-1:7000,box-2:7000

    hybridrec top --servers localhost:7000 --json
    """
    from hybridrec.server.client import Servers
    from hybridrec.server.process import client_tls, read_token

    secured = client_tls(tls_ca) if tls or tls_ca is not None else None
    names = [name.strip() for name in servers.split(",") if name.strip()]
    with Servers.connect(names, token=read_token(token_file), tls=secured, deadline=10.0, name="top") as found:
        if as_json:
            typer.echo(json.dumps({"servers": _look(found)}))
        else:
            with suppress(KeyboardInterrupt):
                _watch(found, interval)


def _look(servers: Servers) -> list[dict[str, Any]]:
    from hybridrec.server.protocol import Kind

    return [dict(answer.fields) for answer in servers.ask_all(Kind.STATS)]


def _watch(servers: Servers, interval: float) -> None:
    from rich.live import Live

    before = _look(servers)
    with Live(_table(before, before), auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            now = _look(servers)
            live.update(_table(before, now), refresh=True)
            before = now


def _table(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from hybridrec.server.watch import COLUMNS, lines

    session = max(each["session"] for each in now)
    title = f"session {session}" if session >= 0 else "no trainers yet"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)  # fits 80 columns
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for line in lines(before, now):
        table.add_row(*line)
    return table
