"""Ranks that tests start without a launcher: the port of the first one, and where they wait for each other."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

from tests.patience import wait_for

_draw = random.Random(os.getpid())


def free_port() -> int:
    """A port that nobody has, of those that a system does not give to whoever asks for any."""
    while True:
        port = _draw.randrange(15_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def meet(folder: Path) -> None:
    """Until all ranks are here: what they import may take any time, and is none of a timeout's."""
    (folder / f"here-{os.environ['RANK']}").touch()
    wait_for(lambda: len(list(folder.glob("here-*"))) == int(os.environ["WORLD_SIZE"]))
