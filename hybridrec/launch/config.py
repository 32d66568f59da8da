"""LaunchConfig: a run.toml with the sections `servers` and `trainers` beside those that `hybridrec train` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, TypeVar

from hybridrec.train.options import checked
from hybridrec.train.run_config import SECTIONS, RunConfig

LAUNCH_SECTIONS = (*SECTIONS, "trainers")
MOST = {"count": 4096, "staleness": 1024, "threads": 4096, "restarts": 1_000_000, "port": 65535}
LEAST = {"count": 1, "threads": 1, "port": 1}
Part = TypeVar("Part", "ServersPart", "TrainersPart")


@dataclass(frozen=True)
class ServersPart:
    """How many servers there are, and where their rows live.

    | | |
    | --- | --- |
    | `staleness` | steps by which rows may be behind; 0 is synchronous training |
    | `path` | folder of the rows, one inside it for each server; without it, `servers` in the folder of the run |
    | `memory` | rows live in memory instead: a server that dies costs the steps since the last checkpoint |
    | `port` | of server 0, the others follow; without it, any that are free |
    | `threads` | of each server |
    | `deadline` | seconds in which a server must answer before a step fails |
    | `restarts` | of one server within a minute; one more ends the run |
    """

    count: int = 1
    staleness: int = 0
    path: str | None = None
    memory: bool = False
    port: int | None = None
    threads: int = 1
    deadline: float = 30.0
    restarts: int = 10

    def __post_init__(self) -> None:
        _check_whole("servers", self, ("count", "staleness", "threads", "restarts", "port"))
        if self.path is not None and not (isinstance(self.path, str) and self.path):
            raise ValueError(f"servers.path is {self.path!r}; it must be the path of a folder")
        if not isinstance(self.memory, bool):
            raise ValueError(f"servers.memory is {self.memory!r}; it must be true or false")
        if self.memory and self.path is not None:
            raise ValueError(
                f"servers.memory is true, and servers.path is {self.path!r}; rows live in one place: drop one"
            )
        seconds = self.deadline
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not (seconds > 0 and isfinite(seconds)):
            raise ValueError(f"servers.deadline is {seconds!r}; it must be a number of seconds above 0")
        if self.port is not None and self.port + self.count - 1 > MOST["port"]:
            last, most = self.port + self.count - 1, MOST["port"] - self.count + 1
            raise ValueError(
                f"servers.port is {self.port}, and {self.count} servers would need ports up to {last}; ports end at "
                f"{MOST['port']}: take {most} or less"
            )


@dataclass(frozen=True)
class TrainersPart:
    """How many trainers there are: each trains on its share of the rows, in `threads` threads (None: the cores shared).

    `restarts` is how often they are started again without a new checkpoint since; one more failure ends the run.
    """

    count: int = 1
    threads: int | None = None
    restarts: int = 3

    def __post_init__(self) -> None:
        _check_whole("trainers", self, ("count", "threads", "restarts"))


@dataclass(frozen=True)
class LaunchConfig:
    """What is to be started. `run` is what trainers get, without where servers are: nobody knows that yet.

    >>> made = LaunchConfig.of({"data": {"label": "click"}, "servers": {"count": 2, "staleness": 4}})
    >>> made.servers.count, made.trainers.count, made.run
    (2, 1, {'data': {'label': 'click'}})
    """

    run: dict[str, Any]
    servers: ServersPart
    trainers: TrainersPart

    @staticmethod
    def of(values: Mapping[str, Any]) -> LaunchConfig:
        """From plain values; an unknown name is an error that lists the valid ones."""
        checked("the configuration", values, [*(each.name for each in fields(RunConfig)), "trainers"])
        run = {name: value for name, value in values.items() if name not in ("servers", "trainers")}
        made = LaunchConfig(run, _part(ServersPart, "servers", values), _part(TrainersPart, "trainers", values))
        RunConfig.of(run)  # raises what trainers would, before anything starts
        return made


def _part(kind: type[Part], section: str, values: Mapping[str, Any]) -> Part:
    stated = values.get(section, {})
    if not isinstance(stated, Mapping):
        raise ValueError(f"{section} is {stated!r}; it must be a section: [{section}] in TOML")
    if others := [name for name in ("addresses", "token_file", "ca") if section == "servers" and name in stated]:
        raise ValueError(
            f"servers.{others[0]} is of servers that run already, and launch starts its own; leave it out, or train "
            "with those: hybridrec train --config"
        )
    return kind(**checked(section, stated, [each.name for each in fields(kind)]))


def _check_whole(section: str, part: Any, names: Sequence[str]) -> None:
    for name in names:
        value, least, most = getattr(part, name), LEAST.get(name, 0), MOST[name]
        if value is None and name in ("port", "threads"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{section}.{name} is {value!r}; it must be a whole number from {least} to {most}")
