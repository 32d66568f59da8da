"""Rows read and updated per second, for `servers.py`: a server beside a table in memory, beside Valkey, and on disk.

A round is a lookup of 20,000 distinct ids and an update of their rows, D = 16, Adagrad; one thread, rows are there
already. Kinds take turns, round by round, and the best round counts. Rates count each row twice: read and written.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from question import note
from servers_processes import Server, processor_seconds, spare_core

from hybridrec import _native
from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Column, Declaration, Rule
from hybridrec.server.protocol import Kind
from hybridrec.server.row_group import Asked, Gradients, RowGroup
from hybridrec.server.rows import Rows

DIM, MESSAGE, ROWS, DRAWS = 16, 20_000, 1_000_000, 32
NUMBERS = np.array([[0.05, 0, 0, 1e-10, 0, 0, 0, 0, 0, np.inf, np.inf, 1, 1]])
ADAGRAD = Rule("adagrad", (Column("sum", False, 0.1),))
TABLE = Declaration("item", DIM, ROWS, eviction="lru")
PIPELINES = (100, 1_000, 20_000)  # keys of a command; the peer's best counts
PEERS = ("valkey-server", "redis-server")
AGAIN = 4  # a round whose clock counts processor time, by hundredths of a second, is so much longer
Work = Callable[[int], None]  # one message of ids, the one at this place


class Draws:
    """Messages of distinct ids, and gradients for them."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.ids = [generator.choice(ROWS, MESSAGE, replace=False).astype(np.int64) for _ in range(DRAWS)]
        self.gradients = generator.standard_normal((MESSAGE, DIM)).astype(np.float32)

    @property
    def all_ids(self) -> Iterator[np.ndarray]:
        """Every id once, message by message."""
        for first in range(0, ROWS, MESSAGE):
            yield np.arange(first, first + MESSAGE, dtype=np.int64)


def round_of(work: Work, seconds: float) -> float:
    """Rows read and written per second, over whole messages."""
    start, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not done:
        work(done % DRAWS)
        done += 1
    return 2 * MESSAGE * done / passed


def in_turn(kinds: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The rates of all kinds, round by round in turn."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for at in range(rounds):
        for kind, run in kinds.items():
            found[kind].append(run())
        note(f"round {at + 1}: " + ", ".join(f"{kind} {rates[-1] / 1e6:.2f} M rows/s" for kind, rates in found.items()))
    return found


# -- ours ----------------------------------------------------------------------------------------------------


class Local:
    """A table of this process, in memory or in files: the native calls of a HashStore, and nothing around them."""

    def __init__(self, draws: Draws, native: Any = None) -> None:
        _native.set_threads(1)
        self._draws, rows = draws, Rows(TABLE, 1, native)
        rows.attach(ADAGRAD)
        self._group = RowGroup([rows])
        for ids in draws.all_ids:
            self._group.lookup(_asked(ids), train=True)
            self._group.update([Gradients(_asked(ids), draws.gradients.ravel(), NUMBERS)])

    def work(self, place: int) -> None:
        asked = _asked(self._draws.ids[place])
        self._group.lookup(asked, train=True)
        self._group.update([Gradients(asked, self._draws.gradients.ravel(), NUMBERS)])


def _asked(ids: np.ndarray) -> Asked:
    return Asked(np.zeros(1, np.int64), np.array([len(ids)]), ids)


class Remote:
    """The same on a server, with as many messages on their way as a staleness of 2 lets."""

    staleness = 2

    def __init__(self, draws: Draws, server: Server) -> None:
        self._draws, self.server = draws, server
        self._servers = Servers.connect([server.address])
        before = self._servers.ask_all(Kind.HELLO)[0].fields["session"]
        self._session = Session(self._servers, before + 1, staleness=self.staleness)
        self._session.attach(0, [TABLE])
        self._session.change(0, Kind.RULE, "item", {"rule": ADAGRAD.to_json()}).result()
        self._step, self._ahead = 0, deque()
        for ids in draws.all_ids:
            self._take(ids)
        self._session.drain()

    def work(self, place: int) -> None:
        self._take(self._draws.ids[place])

    def _take(self, ids: np.ndarray) -> None:
        """Send a lookup, and finish the step of the oldest one that is on its way."""
        at = self._step + len(self._ahead)
        self._ahead.append((ids, self._session.lookup(0, 0, at, [0], [len(ids)], ids, train=True)))
        if len(self._ahead) > self.staleness:
            ids, found = self._ahead.popleft()
            assert len(found.result()) == DIM * len(ids)
            gradients = self._draws.gradients.ravel()
            self._session.push(0, 0, self._step, [0], [len(ids)], ids, gradients, NUMBERS)
            self._step += 1

    def per_core(self, seconds: float) -> float:
        """Rows per second that the server works on them."""
        pid = self.server.process.pid
        busy, start, done = processor_seconds(pid), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            self.work(done % DRAWS)
            done += 1
        self._session.drain()
        return 2 * MESSAGE * done / (processor_seconds(pid) - busy)

    def close(self) -> None:
        self._servers.close()
        self.server.end()


# -- the peer ------------------------------------------------------------------------------------------------


class Peer:
    """Valkey or Redis with the same rows under keys of eight bytes, asked by a client that costs next to nothing:
    commands are written once, and answers are counted and not taken apart.
    """

    def __init__(self, program: str, draws: Draws, cores: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "socket"
        pinned = ["taskset", "-c", cores] if cores else []
        quiet = [
            "--save",
            "",
            "--appendonly",
            "no",
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--dir",
            self._folder.name,
        ]
        self._process = subprocess.Popen([*pinned, program, *quiet], stdout=subprocess.DEVNULL)
        self._socket = _connected(path)
        row = draws.gradients[0].tobytes()
        for ids in draws.all_ids:
            self._socket.sendall(_mset(ids, row))
            self._answered(len(b"+OK\r\n"))
        self._commands = {keys: [_commands(ids, row, keys) for ids in draws.ids] for keys in PIPELINES}

    def per_core(self, keys: int, seconds: float) -> float:
        """Rows per second that the server works on them, with so many keys in a command."""
        pid, reply = self._process.pid, _reply_bytes(keys) * (MESSAGE // keys)
        busy, start, done = processor_seconds(pid), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for command in self._commands[keys][done % DRAWS]:
                self._socket.sendall(command)
            self._answered(reply)
            done += 1
        return 2 * MESSAGE * done / (processor_seconds(pid) - busy)

    def _answered(self, count: int) -> None:
        while count > 0:
            count -= len(self._socket.recv(min(count, 1 << 20)))

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def _connected(path: Path) -> socket.socket:
    expires = time.monotonic() + 20
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(path))
            return made
        except OSError:
            made.close()
            if time.monotonic() > expires:
                raise
            time.sleep(0.05)


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _mset(ids: np.ndarray, row: bytes) -> bytes:
    words = [_bulk(word) for key in ids for word in (key.tobytes(), row)]
    return b"*%d\r\n" % (1 + len(words)) + _bulk(b"MSET") + b"".join(words)


def _mget(ids: np.ndarray) -> bytes:
    return b"*%d\r\n" % (1 + len(ids)) + _bulk(b"MGET") + b"".join(_bulk(key.tobytes()) for key in ids)


def _commands(ids: np.ndarray, row: bytes, keys: int) -> list[bytes]:
    """Reads and writes of all ids, so many keys in a command, all of them in one pipeline."""
    parts = np.split(ids, len(ids) // keys)
    return [_mget(part) + _mset(part, row) for part in parts]


def _reply_bytes(keys: int) -> int:
    value = len(_bulk(bytes(4 * DIM)))
    return len(b"*%d\r\n" % keys) + keys * value + len(b"+OK\r\n")


# -- the figures ---------------------------------------------------------------------------------------------


def beside_local(rounds: int, seconds: float) -> dict[str, Any]:
    """`server_vs_local`: rows/s through a server, over those of a table in the process itself."""
    draws = Draws()
    local, remote = Local(draws), Remote(draws, Server())
    try:
        kinds = {"local": lambda: round_of(local.work, seconds), "server": lambda: round_of(remote.work, seconds)}
        found = in_turn(kinds, rounds)
    finally:
        remote.close()
    best = {kind: max(rates) for kind, rates in found.items()}
    return {"server_vs_local": best["server"] / best["local"], "rows_per_s": best, "rounds": found}


def beside_peer(rounds: int, seconds: float) -> dict[str, Any]:
    """`vs_valkey`: rows per second of work of a server, over those of Valkey or Redis; None where neither is there."""
    program = next((name for name in PEERS if shutil.which(name)), None)
    if program is None:
        return {"vs_valkey": None, "absent": f"none of {', '.join(PEERS)} is installed"}
    draws, (core, _) = Draws(), spare_core()
    peer, remote = Peer(program, draws, core), Remote(draws, Server(cores=core))
    try:
        kinds = {f"peer_{keys}": lambda keys=keys: peer.per_core(keys, AGAIN * seconds) for keys in PIPELINES}
        ours = {"server": lambda: remote.per_core(AGAIN * seconds)}
        found = in_turn({**ours, **kinds}, -(-rounds // AGAIN))
    finally:
        peer.close()
        remote.close()
    best = {kind: max(rates) for kind, rates in found.items()}
    theirs = max(best[kind] for kind in kinds)
    return {"vs_valkey": best["server"] / theirs, "program": program, "rows_per_core_s": best, "rounds": found}


def on_disk(rounds: int, seconds: float) -> dict[str, Any]:
    """`mmap_vs_memory`: how long a step of a table in files takes, over one in memory."""
    draws = Draws()
    with _disk_table() as native:
        disk, memory = Local(draws, native), Local(draws)
        kinds = {"memory": lambda: round_of(memory.work, seconds), "disk": lambda: round_of(disk.work, seconds)}
        found = in_turn(kinds, rounds)
    best = {kind: max(rates) for kind, rates in found.items()}
    return {"mmap_vs_memory": best["memory"] / best["disk"], "rows_per_s": best, "rounds": found}


@contextmanager
def _disk_table() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        policy = TABLE.eviction, TABLE.ttl, TABLE.probability, TABLE.min_count
        place = str(Path(folder) / "rows"), TABLE.name, TABLE.seed
        yield _native.DiskTable(TABLE.spec(), TABLE.capacity, *policy, *place)
