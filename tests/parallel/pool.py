"""Pools of real rank processes on Gloo, kept alive for the whole test session.

    results = pool(2).run("tests.parallel.jobs.echo:rank_and_world", word="hello")  # one result per rank

A job is a function of JSON values and tensors, called on every rank at the same time; it finds the other ranks by
`hybridrec.parallel.ranks()` and returns dicts, lists, JSON values and tensors. A rank that fails is a `RankFailed`
with its traceback; its world is ended and made anew for the next job. So is a world that takes longer than `within`,
and one whose job is left by an interrupt: nobody waits for its answers, which would be taken for those of the next job.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from tests.parallel import parcel
from tests.parallel.relay import Relay
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
GRACE = 0.3  # seconds that the other ranks have to fail too, so that their tracebacks are shown
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class RankFailed(AssertionError):
    """A rank raised, died or hung; the message has what each said."""


class Pool:
    """The rank processes of one world; they start with the first job. `delay` is added to all that they send."""

    def __init__(self, world: int, delay: float = 0.0) -> None:
        self.world = world
        self.delay = delay
        self._relay: Relay | None = None
        self._ranks: list[_Rank] = []
        self._store: TCPStore | None = None

    def run(self, job: str, *, within: float = PATIENCE, **arguments: Any) -> list[Any]:
        """Call "package.module:function" with these arguments on every rank; their results in the order of ranks."""
        try:
            if not self._ranks:
                self._start()
            for rank in self._ranks:
                rank.tell({"job": job, "arguments": arguments})
            return [outcome["result"] for outcome in self._outcomes(within)]
        except BaseException:  # a time limit of pytest's too, after which hypothesis goes on with other cases
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks that run, in their order."""
        return [rank.pid for rank in self._ranks]

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.end()
        if self._relay is not None:
            self._relay.close()
        self._ranks, self._store, self._relay = [], None, None

    def _start(self) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._relay = Relay(self.delay) if self.delay else None
        self._ranks = _forge().ranks(self.world, self._store.port, self._relay.port if self._relay else None)
        self._outcomes(PATIENCE)

    def _outcomes(self, within: float) -> list[dict[str, Any]]:
        """What all ranks answer; a failure ends them all."""
        outcomes: list[dict[str, Any] | None] = [None] * self.world
        until = time.monotonic() + within
        failed = False
        while None in outcomes:
            rank = self._next(outcomes, until)
            if rank is None:
                break
            outcomes[rank] = self._ranks[rank].answers.get()
            if "error" in outcomes[rank] and not failed:  # type: ignore[operator]
                failed, until = True, min(until, time.monotonic() + GRACE)
        if failed or None in outcomes:
            self._fail(outcomes, "a rank failed" if failed else f"not done within {within:g} s")
        return outcomes  # type: ignore[return-value]

    def _next(self, outcomes: list[dict[str, Any] | None], until: float) -> int | None:
        """A rank whose answer has come; None where none comes in time."""
        while True:
            for rank, outcome in enumerate(outcomes):
                if outcome is None and not self._ranks[rank].answers.empty():
                    return rank
            if time.monotonic() > until:
                return None
            _arrived.acquire(timeout=max(0.0, min(1.0, until - time.monotonic())))

    def _fail(self, outcomes: list[dict[str, Any] | None], why: str) -> None:
        said = []
        for rank, outcome in zip(self._ranks, outcomes, strict=True):
            what = outcome.get("error", "was done") if outcome else "gave no answer; it stood at\n" + rank.stack()
            said.append(f"rank {rank.rank}: {what.rstrip()}")
        raise RankFailed(f"world of {self.world}: {why}\n" + "\n".join(said))


class _Rank:
    """One rank process: its socket, its answers."""

    def __init__(self, link: socket.socket, log: Path) -> None:
        hello = parcel.receive(link)
        self.rank: int = hello["rank"]
        self.pid: int = hello["pid"]
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._link, self._log = link, log
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, job: dict[str, Any]) -> None:
        """Send a job; a rank that is gone has answered so already."""
        with contextlib.suppress(OSError):
            parcel.send(self._link, job)

    def stack(self) -> str:
        """Where the process stands, by what it writes to its log, if it writes within some seconds."""
        before, until = self._written(), time.monotonic() + 10
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
            while self._written() == before and time.monotonic() < until:
                time.sleep(0.05)
        while (lines := self._written()) != before:  # there may be more
            before = lines
            time.sleep(0.3)
        return before

    def end(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._link.close()

    def _listen(self) -> None:
        while True:
            try:
                self.answers.put(parcel.receive(self._link))
            except (EOFError, OSError):
                self.answers.put({"error": "the process ended\n" + self._written()})
                _arrived.release()
                return
            _arrived.release()

    def _written(self) -> str:
        path = self._log.with_suffix(f".{self.rank}")
        return path.read_text(errors="replace")[:6000] if path.exists() else ""


class _Forge:
    """The process that forks ranks, and the folder of the sockets where they report, one for each world."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hybridrec-ranks-"))
        self._made = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.parallel.rank_process"],
            cwd=ROOT,
            env={**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
        )

    def ranks(self, world: int, port: int, relay: int | None) -> list[_Rank]:
        """Ranks of a new world that meet at this port, and reach each other through the relay at that one."""
        self._made += 1
        log = self._folder / f"world{self._made}"
        assert self._process.stdin is not None
        with socket.socket(socket.AF_UNIX) as meeting:
            meeting.bind(str(log))
            meeting.listen(world)
            meeting.settimeout(PATIENCE)
            for rank in range(world):
                wanted = self._wanted(rank, world, port, log) | {"relay": relay}
                self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
            self._process.stdin.flush()
            found = [_Rank(meeting.accept()[0], log) for _ in range(world)]
        return sorted(found, key=lambda each: each.rank)

    def _wanted(self, rank: int, world: int, port: int, log: Path) -> dict[str, Any]:
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the pool's, so no port is ever raced for
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        return {
            "rank": rank,
            "environment": environment,
            "socket": str(log),
            "log": str(log.with_suffix(f".{rank}")),
            "timeout": PATIENCE,
        }

    def close(self) -> None:
        """End the process; the ranks end with their sockets."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_arrived = threading.Semaphore(0)  # released with every answer
_pools: dict[tuple[int, float], Pool] = {}
_only_forge: _Forge | None = None


def pool(world: int, delay: float = 0.0) -> Pool:
    """The pool of that many ranks with so many seconds between them, the same for the whole session."""
    return _pools.setdefault((world, delay), Pool(world, delay))


def _forge() -> _Forge:
    global _only_forge
    if _only_forge is None:
        _only_forge = _Forge()
        atexit.register(_close)
    return _only_forge


def _close() -> None:
    global _only_forge
    for each in _pools.values():
        each.close()
    if _only_forge is not None:
        _only_forge.close()
    _only_forge = None
