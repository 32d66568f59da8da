"""A process that imports torch once and forks rank processes, each of which runs the jobs that the pool sends it.

It reads one JSON line for each rank that is wanted; a rank connects to the pool's socket and says who it is.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what making an optimizer loads
from torch import distributed

import hybridrec.embedding
import hybridrec.optim  # noqa: F401  (a forked rank has them already)
from hybridrec.parallel.ranks import init
from tests.parallel import parcel
from tests.parallel.relayed import join


def main() -> None:
    """Fork a rank for each line, until the pool is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted pytest ends its pools itself
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks that end leave nothing behind
    for line in iter(sys.stdin.buffer.raw.readline, b""):  # type: ignore[attr-defined]
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _be_rank(json.loads(line))


def _be_rank(wanted: dict[str, Any]) -> None:
    """Join the world, then run jobs until the pool is gone."""
    os.environ.update(wanted["environment"])
    _write_to(Path(wanted["log"]))
    torch.set_num_threads(1)
    pool = socket.socket(socket.AF_UNIX)
    pool.connect(wanted["socket"])
    parcel.send(pool, {"rank": wanted["rank"], "pid": os.getpid()})
    jobs: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(pool, jobs), daemon=True).start()
    parcel.send(pool, _outcome(_join, {name: wanted[name] for name in ("timeout", "relay")}))
    while True:
        job = jobs.get()
        parcel.send(pool, _outcome(_call, job))


def _write_to(log: Path) -> None:
    """What this rank prints goes to its own file; SIGUSR1 writes there where it stands."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)


def _listen(pool: socket.socket, jobs: queue.Queue[Any]) -> None:
    """Take jobs; end the process, whatever it is doing, when the pool is gone."""
    while True:
        try:
            jobs.put(parcel.receive(pool))
        except EOFError:
            os._exit(0)


def _join(timeout: float, relay: int | None) -> None:
    if relay is None:
        init(timeout=timeout)
    else:
        join(relay, timeout)


def _call(job: str, arguments: dict[str, Any]) -> Any:
    module, name = job.split(":")
    try:
        return getattr(importlib.import_module(module), name)(**arguments)
    finally:
        _leave_groups()


def _leave_groups() -> None:
    """Part from the groups of processes that the job made, each of which has threads and sockets of its own."""
    if distributed.is_initialized():
        for group in list(distributed.distributed_c10d._world.pg_map):
            if group is not distributed.group.WORLD:
                distributed.destroy_process_group(group)


def _outcome(call: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a call gives, or the traceback of its error. Warnings are errors, as in pytest."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if os.environ.get("TRITON_INTERPRET") == "1":  # numpy, on masked lanes; see tests/gpu.py
                warnings.filterwarnings("ignore", ".*encountered in", RuntimeWarning)
            return {"result": call(**arguments)}
    except BaseException:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main()
