"""Servers as real processes, certificates, and a relay that cuts connections."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PYTHON = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


class ServerProcess:
    """`hybridrec server` with these arguments, listening."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "hybridrec", "server", "--port", str(port), *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=PYTHON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " listens at " not in line:
            raise RuntimeError(f"no server: {line}{self.process.communicate()[1]}")
        self.address = line.split()[-1]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        """Stop it until SIGCONT comes."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Relay:
    """Passes connections on to an address; `cut` ends them, and `after` cuts each after so many bytes of answers."""

    def __init__(self, to: str, after: int | None = None) -> None:
        host, _, port = to.rpartition(":")
        self._to, self.after, self.connections = (host, int(port)), after, 0
        self._ends: set[socket.socket] = set()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._to) as server:
            self._ends |= {client, server}
            self.connections += 1
            back = threading.Thread(target=self._pass, args=(server, client, self.after), daemon=True)
            back.start()
            self._pass(client, server, None)
            back.join()
            self._ends -= {client, server}

    def _pass(self, source: socket.socket, to: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16 if left is None else min(left, 1 << 16) or 1):
                if left is not None and left <= 0:
                    break
                to.sendall(data)
                left = None if left is None else left - len(data)
        for end in (source, to):
            _end(end)

    def cut(self) -> None:
        """End all connections now; new ones are taken."""
        for end in list(self._ends):
            _end(end)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._socket)
        self._socket.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def certificate(folder: Path, name: str = "server", days: int = 2) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key; with -1 days it has expired."""
    cert, key, request, names = (folder / f"{name}.{kind}" for kind in ("pem", "key", "csr", "names"))
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key)]
    _openssl("req", "-new", *curve, "-out", str(request), "-subj", "/CN=localhost")
    signed = ["-signkey", str(key), *_valid(days), "-extfile", str(names), "-out", str(cert)]
    _openssl("x509", "-req", "-in", str(request), *signed)
    return cert, key


def _valid(days: int) -> list[str]:
    """The option for so many days; from 3.4 on openssl wants dates where they are over."""
    if days < 0 and b"-not_after" in _openssl("x509", "-help"):
        return ["-not_before", "20200101000000Z", "-not_after", "20200102000000Z"]
    return ["-days", str(days)]


def _openssl(*arguments: str) -> bytes:
    """What it says."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    done = subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    return done.stdout + done.stderr
