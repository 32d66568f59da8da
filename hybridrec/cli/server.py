"""`hybridrec server`: one embedding server, which holds its share of the rows of a job's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def server(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 7000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    number: Annotated[int, typer.Option(min=0, help="Which server this is: 0, 1, …")] = 0,
    of: Annotated[int, typer.Option(min=1, help="How many servers there are.")] = 1,
    path: Annotated[
        Path | None, typer.Option(help="Directory to keep the rows in; without it they are in memory.")
    ] = None,
    read_only: Annotated[Path | None, typer.Option(help="A checkpoint to answer from, without training.")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Bytes beyond which no rows are added, such as 64G.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that clients must have.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen to other machines without TLS and token.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port for Prometheus; 0: a free one.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that work on rows.")] = 1,
) -> None:
    """Run one embedding server until it is told to stop.

    The first line that it prints is the address where it listens. A server that
    other machines can reach needs a certificate and a token.

    [bold]Examples[/bold]

    hybridrec server --number 0 --of 2 --port 7000

    hybridrec server --host 0.0.0.0 --token-file token --tls-cert cert.pem --tls-key key.pem
    """
    from hybridrec.server.process import ServerOptions, bytes_of, read_token, run

    rows = {"path": path, "read_only": read_only, "memory_limit": bytes_of(memory_limit), "threads": threads}
    where = {"number": number, "of": of, "host": host, "port": port}
    safety = {"token": read_token(token_file), "tls_cert": tls_cert, "tls_key": tls_key, "insecure": insecure}
    run(ServerOptions(**where, **rows, **safety, metrics_port=metrics_port))
