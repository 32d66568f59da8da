"""Server processes for `servers.py`, relays that delay what they send, and what a process has used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # chaos is that of the tests


class Server:
    """`hybridrec server` with these arguments, on some cores where they are given."""

    def __init__(self, *arguments: str, cores: str | None = None) -> None:
        pinned = ["taskset", "-c", cores] if cores else []
        command = [*pinned, sys.executable, "-m", "hybridrec", "server", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " listens at " not in line:
            raise RuntimeError(f"no server: {line}")
        self.address = line.split()[-1]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def environment() -> dict[str, str]:
    """That of this process, with the project's packages to be found."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@contextmanager
def servers(count: int, *arguments: str, paths: Sequence[Path] = ()) -> Iterator[list[str]]:
    """The addresses of so many servers, for a while; with `paths`, their rows lie there."""
    with ExitStack() as stack:
        made = []
        for number in range(count):
            where = ["--path", str(paths[number])] if paths else []
            made.append(Server("--number", str(number), "--of", str(count), *arguments, *where))
            stack.callback(made[-1].end)
        yield [each.address for each in made]


@contextmanager
def delayed(addresses: Sequence[str], seconds: float) -> Iterator[list[str]]:
    """Addresses of a relay in front of these: every byte arrives so many seconds after it was sent, both ways."""
    ports = [each.rpartition(":")[2] for each in addresses]
    command = [sys.executable, str(Path(__file__).with_name("servers_relay.py")), str(seconds), *ports]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdin is not None
        assert relay.stdout is not None
        yield [f"127.0.0.1:{port}" for port in relay.stdout.readline().split()]
        relay.stdin.close()  # it ends with it


def processor_seconds(pid: int) -> float:
    """What a process has used of the processor, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """The memory that a process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spare_core() -> tuple[str | None, str | None]:
    """A core for a server and those for its client; none where there is only one."""
    there = sorted(os.sched_getaffinity(0))
    return (None, None) if len(there) < 2 else (str(there[0]), ",".join(map(str, there[1:])))
