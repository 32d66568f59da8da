"""What goes wrong between trainers and servers, as a trainer sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ServerLost(RuntimeError):
    """A server did not answer until the deadline, or has lost its rows; the step cannot go on.

    >>> print(ServerLost(1, "box:7000", "the lookup of step 7", "was not answered in 30 s", "runs/a"))
    server 1 (box:7000): the lookup of step 7 was not answered in 30 s; start the server again, then resume from runs/a
    """

    def __init__(
        self, server: int, address: str, what: str, reason: str, checkpoint: str | None = None, remedy: str = ""
    ) -> None:
        """`remedy` in place of a checkpoint, where nothing was trained yet."""
        again = f"start the server again, then resume from {checkpoint or 'the last checkpoint'}"
        super().__init__(f"server {server} ({address}): {what} {reason}; {remedy or again}")
        self.server, self.address, self.what, self.reason, self.checkpoint = server, address, what, reason, checkpoint

    def resumable(self, checkpoint: str | None, steps: int) -> ServerLost:
        """The same, with the checkpoint to resume from, and how many steps since then are lost."""
        kept = f"{checkpoint} ({steps:,} steps since then are lost)" if checkpoint else None
        return ServerLost(self.server, self.address, self.what, self.reason, kept)


class Fenced(RuntimeError):
    """Another start of the same job uses the servers; this one must stop."""


def raised(server: int, fields: Mapping[str, Any]) -> Exception:
    """What to raise for an error that a server answered with.

    >>> raised(0, {"code": "value", "message": "table 'a' is full"})
    ValueError("server 0: table 'a' is full")
    """
    kinds = {"fenced": Fenced, "unauthorized": PermissionError, "failed": RuntimeError, "busy": RuntimeError}
    return kinds.get(str(fields.get("code")), ValueError)(f"server {server}: {fields.get('message')}")
