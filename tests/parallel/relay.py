"""A relay that adds latency between ranks on Gloo: every byte arrives a given time after it was sent.

    with Relay(0.002) as relay:  # a process of its own
        ...                      # start ranks; each calls relayed.join(relay.port) in place of hr.init()

Bandwidth is that of two copies in Python, on a core that the ranks may want themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 1 << 18


class Relay:
    """The relay process; `port` is where ranks ask it for addresses."""

    def __init__(self, seconds: float) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.parallel.relay", str(seconds)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def reach(self, address: str) -> str:
        """An address at which the relay passes connections on to this one."""
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1", "the relay is for this machine"
        with socket.create_connection((host, self.port)) as link, link.makefile("rw") as lines:
            lines.write(json.dumps({"target": int(port), "beside": 0}) + "\n")
            lines.flush()
            return f"{host}:{int(lines.readline())}"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            if end is not None:
                end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- in the relay process -------------------------------------------------------------------------------------


def serve(seconds: float) -> None:
    """Give out addresses until the process that started this one is gone."""
    asked = socket.create_server(("127.0.0.1", 0))
    print(asked.getsockname()[1], flush=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        link, _ = asked.accept()
        with link, link.makefile("rw") as lines:
            wanted = json.loads(lines.readline())
            listener = _listener(wanted["target"], wanted["beside"])
            threading.Thread(target=_relay, args=(listener, wanted["target"], seconds), daemon=True).start()
            lines.write(f"{listener.getsockname()[1]}\n")
            lines.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _listener(target: int, beside: int) -> socket.socket:
    """A listener on a free port that lies to `beside` as `target` does."""
    ports = list(range(1025, 65536))
    random.shuffle(ports)
    for port in ports:
        if all((order(port) < order(beside)) == (order(target) < order(beside)) for order in (int, _swapped)):
            with contextlib.suppress(OSError):
                return socket.create_server(("127.0.0.1", port))
    raise RuntimeError(f"no free port lies to {beside} as {target} does")


def _swapped(port: int) -> int:
    """The port as a number of the other byte order: Gloo compares them so on some machines."""
    return int.from_bytes(port.to_bytes(2, "big"), "little")


def _relay(listener: socket.socket, target: int, seconds: float) -> None:
    while True:
        one, _ = listener.accept()
        other = socket.create_connection(("127.0.0.1", target))
        for origin, to in ((one, other), (other, one)):
            to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            late: queue.Queue[Any] = queue.Queue()
            threading.Thread(target=_read, args=(origin, late, seconds), daemon=True).start()
            threading.Thread(target=_write, args=(to, late), daemon=True).start()


def _read(origin: socket.socket, late: queue.Queue[Any], seconds: float) -> None:
    """Note when each piece has to leave; an empty one is the end."""
    while True:
        try:
            piece = origin.recv(CHUNK)
        except OSError:
            piece = b""
        late.put((time.monotonic() + seconds, piece))
        if not piece:
            return


def _write(to: socket.socket, late: queue.Queue[Any]) -> None:
    while True:
        leaves, piece = late.get()
        time.sleep(max(0.0, leaves - time.monotonic()))
        with contextlib.suppress(OSError):
            if not piece:
                to.shutdown(socket.SHUT_WR)
                return
            to.sendall(piece)


if __name__ == "__main__":
    serve(float(sys.argv[1]))
