"""How servers and trainers of a run are started: their commands, the token that they share, the file that they read."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Protocol

from hybridrec.launch.child import Start
from hybridrec.launch.config import LaunchConfig

HYBRIDREC = (sys.executable, "-m", "hybridrec")


class Roles(Protocol):
    """How processes are started; tests have others than those of `hybridrec`."""

    servers: int
    trainers: int
    again: str  # the command that goes on with the run

    def server(self, number: int, port: int) -> Start:
        """A server, at this port; 0 is the one that the run names for it, else any."""
        ...

    def trainer(self, rank: int, addresses: list[str], again: bool, port: int) -> Start:
        """A trainer; `again`: it goes on with the last checkpoint. Trainers meet at this port."""
        ...

    def watched_by(self, addresses: list[str]) -> str:
        """The command that watches the servers."""
        ...


class RunRoles:
    """Those of a run. `private` is a folder that nobody else can read, for as long as the run lasts; `again` is the
    command that goes on with it.
    """

    def __init__(self, config: LaunchConfig, out: Path, private: Path, again: str, flags: tuple[str, ...] = ()) -> None:
        self.servers, self.trainers = config.servers.count, config.trainers.count
        self._config, self._out, self._private, self._flags = config, out, private, flags
        self.again = again
        self._token = private / "token"
        _write_private(self._token, secrets.token_urlsafe(32))
        self.path = None if config.servers.memory else Path(config.servers.path or out / "servers")

    def server(self, number: int, port: int) -> Start:
        named = self._config.servers.port
        at = port or (0 if named is None else named + number)
        who = ["--number", str(number), "--of", str(self.servers), "--port", str(at)]
        how = ["--token-file", str(self._token), "--threads", str(self._config.servers.threads)]
        where = [] if self.path is None else ["--path", str(self.path / f"{number}-of-{self.servers}")]
        return Start([*HYBRIDREC, "server", *who, *how, *where], dict(os.environ))

    def trainer(self, rank: int, addresses: list[str], again: bool, port: int) -> Start:
        command = [*HYBRIDREC, "train", "--config", str(self._file(addresses)), "--out", str(self._out), *self._flags]
        resume = ["--resume"] if again and "--resume" not in self._flags else []
        return Start([*command, *resume, "--resume-with", self.again], self._environment(rank, port))

    def watched_by(self, addresses: list[str]) -> str:
        return f"hybridrec top --servers {','.join(addresses)} --token-file {self._token}"

    def _file(self, addresses: list[str]) -> Path:
        servers = self._config.servers
        where = {"addresses": addresses, "token_file": str(self._token)}
        how = {"staleness": servers.staleness, "deadline": servers.deadline}
        file = self._private / "run.json"
        file.write_text(json.dumps({**self._config.run, "servers": {**where, **how}}))
        return file

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """The names that torchrun gives, where there are several trainers, and threads."""
        stated, made = self._config.trainers.threads, dict(os.environ)
        if stated is not None or self.trainers > 1:
            share = max(1, (os.cpu_count() or 1) // self.trainers)
            made["OMP_NUM_THREADS"] = str(stated or os.environ.get("OMP_NUM_THREADS", share))
        if self.trainers > 1:
            of_ranks = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": self.trainers,
                "LOCAL_WORLD_SIZE": self.trainers,
            }
            made |= {name: str(value) for name, value in of_ranks.items()}
            made |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return made


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        return there.getsockname()[1]


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
