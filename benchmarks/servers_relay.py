"""A relay for `servers.py`: every byte arrives a given time after it was sent, both ways. One thread, one loop.

    python benchmarks/servers_relay.py SECONDS PORT ...    # prints a port for each, and ends with its standard input

A delay costs a network nothing, but a relay needs a processor that trainer and servers could use. So this one copies
nothing: the kernel moves pages from a socket to a pipe, where they wait, and from there to the other socket (`splice`).
Each piece has a pipe of its own; many pieces, and so many lookups, are on their way at once.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import NamedTuple

F_SETPIPE_SZ = 1031  # of Linux; Python 3.11 has no name for it
PIECE = 1 << 20  # bytes of a pipe, where the system lets it have them
MOST = 64  # pieces that may wait in one direction
SOON = 0.0001  # seconds: what is due so soon leaves now
SPLICE = 1 | 2  # move pages, and do not wait


class Pipe:
    """Room in the kernel for a piece."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        with suppress(PermissionError):  # then pieces are smaller, and more
            fcntl.fcntl(self.into, F_SETPIPE_SZ, PIECE)

    def close(self) -> None:
        """Give it back, with what waits in it."""
        os.close(self.out)
        os.close(self.into)


class Piece(NamedTuple):
    """Bytes that wait; the end of a direction is a piece of none."""

    due: float
    pipe: Pipe
    size: int


class Flow:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket, spare: list[Pipe]) -> None:
        """Empty pipes are in `spare`, for all flows, so that there are no more of them than pieces wait at once."""
        self.source, self.target = source, target
        self.late: deque[Piece] = deque()
        self._spare = spare
        self.open, self.blocked, self.ended = True, False, False

    @property
    def reads(self) -> bool:
        return self.open and len(self.late) < MOST

    def read(self, seconds: float) -> None:
        """Take what has come."""
        pipe = self._spare.pop() if self._spare else Pipe()
        try:
            size = os.splice(self.source.fileno(), pipe.into, PIECE, flags=SPLICE)
        except BlockingIOError:
            self._spare.append(pipe)
            return
        except OSError:
            size = 0
        self.open = bool(size)
        self.late.append(Piece(time.perf_counter() + seconds, pipe, size))

    def write(self, now: float) -> None:
        """Pass on what is due."""
        self.blocked = False
        while self.late and self.late[0].due <= now + SOON and not self.blocked:
            piece = self.late.popleft()
            try:
                sent = os.splice(piece.pipe.out, self.target.fileno(), piece.size, flags=SPLICE) if piece.size else 0
            except BlockingIOError:
                sent = 0
            except OSError:
                return self._end(piece)
            if not piece.size:
                return self._end(piece)
            if sent < piece.size:
                self.late.appendleft(piece._replace(size=piece.size - sent))
                self.blocked = True
            else:
                self._spare.append(piece.pipe)
        return None

    def _end(self, last: Piece) -> None:
        """Nothing more goes this way."""
        self.open, self.ended = False, True
        with suppress(OSError):  # the other side was first
            self.target.shutdown(socket.SHUT_WR)
        for pipe in (last.pipe, *(piece.pipe for piece in self.late)):
            pipe.close()
        self.late.clear()


def relay(seconds: float, targets: list[int]) -> None:
    """Pass connections on to these ports until standard input ends."""
    listeners = {socket.create_server(("127.0.0.1", 0)): target for target in targets}
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    flows: list[Flow] = []
    spare: list[Pipe] = []
    while True:
        now = time.perf_counter()
        for flow in flows:
            flow.write(now)
        flows = [flow for flow in flows if not flow.ended]
        coming = {flow.source: flow for flow in flows if flow.reads}
        blocked = [flow.target for flow in flows if flow.blocked]
        dues = [flow.late[0].due for flow in flows if flow.late and not flow.blocked]
        wait = max(0.0, min(dues) - time.perf_counter()) if dues else None
        ready, _, _ = select.select([sys.stdin, *listeners, *coming], blocked, [], wait)
        for each in ready:
            if each in coming:
                coming[each].read(seconds)
            elif each in listeners:
                flows += _connected(each.accept()[0], listeners[each], spare)
            else:
                return


def _connected(one: socket.socket, target: int, spare: list[Pipe]) -> list[Flow]:
    other = socket.create_connection(("127.0.0.1", target))
    for each in (one, other):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return [Flow(one, other, spare), Flow(other, one, spare)]


if __name__ == "__main__":
    relay(float(sys.argv[1]), [int(port) for port in sys.argv[2:]])
