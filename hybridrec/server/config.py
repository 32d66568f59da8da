"""ServersConfig: which servers a run uses, and how."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hybridrec.server.channel import split_address
from hybridrec.server.process import client_tls, read_token

MOST_STALENESS = 1024


@dataclass(frozen=True)
class ServersConfig:
    """Addresses of servers 0, 1, …, as "host:port", and how trainers talk to them.

    | | |
    | --- | --- |
    | `staleness` | steps by which rows may be behind: lookups go so many steps ahead; 0 is synchronous training |
    | `token_file` | a file with the token that servers ask for |
    | `ca` | a file with the certificate that servers must be signed by: TLS |
    | `deadline` | seconds in which a server must answer before the step fails |

    >>> ServersConfig(["a:7000", "b:7000"], staleness=4).staleness
    4
    """

    addresses: Sequence[str] = field(default_factory=list)
    staleness: int = 0
    token_file: str | None = None
    ca: str | None = None
    deadline: float = 30.0

    def __post_init__(self) -> None:
        listed = not isinstance(self.addresses, str) and all(isinstance(each, str) for each in self.addresses)
        if not listed or not self.addresses:
            raise ValueError(
                f'servers.addresses is {self.addresses!r}; it must be a list such as ["host:7000"]; on the command '
                "line, name all servers with --servers host:7000,host:7001"
            )
        for each in self.addresses:
            split_address(each)
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError(f"servers.addresses is {list(self.addresses)}; each server is named once")
        check_staleness(self.staleness)
        for name in ("token_file", "ca"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"servers.{name} is {getattr(self, name)!r}; it must be the path of a file")
        if isinstance(self.deadline, bool) or not isinstance(self.deadline, int | float) or not self.deadline > 0:
            raise ValueError(f"servers.deadline is {self.deadline!r}; it must be a number of seconds above 0")

    @staticmethod
    def of(values: Mapping[str, Any]) -> ServersConfig:
        """From plain values; an unknown name is an error that lists the valid ones."""
        valid = [each.name for each in fields(ServersConfig)]
        if unknown := [name for name in values if name not in valid]:
            raise ValueError(f"servers has no option {unknown[0]!r}; valid are {', '.join(valid)}")
        return ServersConfig(**values)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `of` makes the same options."""
        return {**asdict(self), "addresses": list(self.addresses)}

    def token(self) -> str | None:
        """What is in the file of the token."""
        return None if self.token_file is None else read_token(Path(self.token_file))

    def tls(self) -> ssl.SSLContext | None:
        """What certificates are checked against."""
        return None if self.ca is None else client_tls(Path(self.ca))


def check_staleness(value: Any) -> None:
    """Refuse a staleness that is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_STALENESS:
        raise ValueError(f"staleness is {value!r}; it must be a whole number from 0 to {MOST_STALENESS}")
