"""A server as a process: a shard, its listener, signals, and a clean stop. It does not import torch."""

from __future__ import annotations

import signal
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hybridrec import _native
from hybridrec.server.listener import Listener
from hybridrec.server.metrics import serve_metrics
from hybridrec.server.shard import Shard

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HEEDING = 0.5  # seconds: a signal that comes just before Python begins to wait is noted when it stops waiting


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server runs: who it is, where it listens, whom it lets in.

    >>> ServerOptions(host="0.0.0.0").check()
    Traceback (most recent call last):
    ValueError: a server at 0.0.0.0 can be reached from other machines; give --tls-cert, --tls-key and --token-file, ...
    """

    number: int = 0
    of: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    threads: int = 1
    path: Path | None = None
    metrics_port: int | None = None
    read_only: Path | None = None  # a checkpoint
    memory_limit: int | None = None  # bytes

    def check(self) -> None:
        """Refuse what cannot be, and what would let strangers in."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a server with TLS has both --tls-cert and --tls-key; give the other one too")
        if self.path is not None and self.read_only is not None:
            raise ValueError("a server with --read-only keeps nothing, so it has no --path; leave one of them out")
        if not 0 <= self.number < self.of:
            raise ValueError(f"--number is {self.number} and --of is {self.of}; numbers go from 0 to {self.of - 1}")
        if self.token is not None and len(self.token) < 16:
            raise ValueError(f"the token has {len(self.token)} characters; it must have at least 16")
        guarded = self.tls_cert is not None and self.token is not None
        if not (is_loopback(self.host) or guarded or self.insecure):
            raise ValueError(
                f"a server at {self.host} can be reached from other machines; give --tls-cert, --tls-key and "
                "--token-file, or --insecure where the network keeps strangers out"
            )

    def tls(self) -> ssl.SSLContext | None:
        """What secures connections, where that is wanted."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _readable("--tls-cert", self.tls_cert)
        _readable("--tls-key", self.tls_key)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"--tls-cert {self.tls_cert} and --tls-key {self.tls_key} are no certificate with its key ({error}); "
                "both must be PEM, and of one pair"
            ) from None
        return context


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches this address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path | None) -> str | None:
    """The token that a file holds, without the end of the line."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise ValueError(f"the token cannot be read from {path}: {error.strerror}; name a file that holds it") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} holds bytes that are no text, and a token is text; write one: "
            f"head -c 32 /dev/urandom | base64 > {path}"
        ) from None
    if not token:
        raise ValueError(f"{path} holds no token; write a long random text into it")
    return token


def _readable(what: str, path: Path | None) -> None:
    """Refuse a file that cannot be opened, with its name: ssl tells neither which it was, nor what to do."""
    try:
        if path is not None:
            path.open("rb").close()
    except OSError as error:
        raise ValueError(
            f"{what} cannot be read from {path}: {error.strerror}; name a PEM file that you may read"
        ) from None


def client_tls(authority: Path | None) -> ssl.SSLContext:
    """How clients check servers: by this certificate, or by those that the system trusts."""
    _readable("the certificate of servers", authority)
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    except ssl.SSLError as error:
        raise ValueError(
            f"{authority} holds no certificate ({error.reason or error}); give the PEM file that servers have as "
            "--tls-cert, or that of the authority which signed it"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def shard_of(options: ServerOptions) -> Shard:
    """The shard that a server serves."""
    if options.read_only is None:
        try:
            return Shard(options.number, options.of, options.path, memory_limit=options.memory_limit)
        except OSError as error:
            raise ValueError(
                f"rows cannot be kept in {options.path}: {error.strerror or error}; give a folder that you may write "
                "to as --path (servers.path of a run.toml)"
            ) from None
    from hybridrec.server.saved_rows import saved_tables

    return Shard(options.number, options.of, saved=saved_tables(options.read_only, options.number, options.of))


def bytes_of(text: str | None) -> int | None:
    """A number of bytes as people write it.

    >>> bytes_of("1.5G"), bytes_of("800M"), bytes_of("4096")
    (1610612736, 838860800, 4096)
    """
    if text is None:
        return None
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    try:
        found = int(float(number) * unit)
    except (ValueError, OverflowError):
        found = 0
    if found <= 0:
        raise ValueError(f"{text!r} is no number of bytes; write it as in 800M, 64G or 1.5T")
    return found


class _Stopped(Exception):
    """A signal came."""


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """Leave off what the main thread does. An event would not do: that thread may hold the lock of the event."""
    _ignore_signals()
    raise _Stopped


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def run(options: ServerOptions) -> None:
    """Serve until SIGTERM, SIGINT or a message that says stop. Prints where it listens as its first line."""
    options.check()
    _native.set_threads(options.threads)
    shard = shard_of(options)
    secured = {"token": options.token, "tls": options.tls()}
    with suppress(_Stopped), Listener(shard, options.host, options.port, **secured) as listener:
        for number in SIGNALS:
            signal.signal(number, _stop)
        if options.metrics_port is not None:
            metrics = serve_metrics(shard, options.host, options.metrics_port)
            print(f"metrics at http://{options.host}:{metrics}/metrics", file=sys.stderr, flush=True)
        print(f"server {options.number} of {options.of} listens at {options.host}:{listener.port}", flush=True)
        while not listener.stopping.wait(HEEDING):
            pass
    _ignore_signals()
    shard.close()
    print("stopped", file=sys.stderr, flush=True)
