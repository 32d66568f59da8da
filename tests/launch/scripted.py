"""Roles whose servers and trainers are a few lines of Python, so that they start at once."""

from __future__ import annotations

import sys
from pathlib import Path

from hybridrec.launch.child import Start

SERVER = """
import os, socket, sys, time
from pathlib import Path
folder, number, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
there = socket.create_server(("127.0.0.1", port))
(folder / f"server-{number}.pid.part").write_text(str(os.getpid()))
(folder / f"server-{number}.pid.part").rename(folder / f"server-{number}.pid")
with open(folder / f"server-{number}.ports", "a") as file: file.write(f"{there.getsockname()[1]}\\n")
print(f"server {number} of 9 listens at 127.0.0.1:{there.getsockname()[1]}", flush=True)
time.sleep(600)
"""

# What trainers can call: `start` counts the starts of this rank, `again` is whether it is to resume.
TRAINER = """
import os, signal, sys, time
from pathlib import Path
folder, rank, again = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
addresses = sys.argv[4:]
start = len(list(folder.glob(f"start-{rank}-*")))
(folder / f"start-{rank}-{start}").touch()
def until(name):
    while not (folder / name).exists(): time.sleep(0.005)
def die(): os.kill(os.getpid(), signal.SIGKILL)
def pid(server): return int((folder / f"server-{server}.pid").read_text())
"""


class Scripted:
    """Servers that listen and wait; trainers that run `script`."""

    again = "the command with --resume"

    def __init__(self, folder: Path, script: str, servers: int = 1, trainers: int = 1, server: str = SERVER) -> None:
        self.servers, self.trainers = servers, trainers
        self._folder, self._script, self._server = folder, script, server

    def server(self, number: int, port: int) -> Start:
        return Start([sys.executable, "-S", "-c", self._server, str(self._folder), str(number), str(port)], {})

    def trainer(self, rank: int, addresses: list[str], again: bool, port: int) -> Start:
        told = [str(self._folder), str(rank), str(again), *addresses]
        return Start([sys.executable, "-S", "-c", TRAINER + self._script, *told], {})

    def watched_by(self, addresses: list[str]) -> str:
        return f"top of {' '.join(addresses)}"
