"""A relay for `servers.py`: every byte arrives a given time after it was sent, both ways. One thread, one loop.

    python benchmarks/servers_relay.py SECONDS PORT ...    # prints a port for each, and ends with its standard input

Bandwidth is that of two copies; many lookups may be on their way at once.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

PIECE, MOST = 1 << 20, 64 << 20  # bytes that are read at once, and that may wait in one direction
SOON = 0.0001  # seconds: what is due so soon leaves now


class Flow:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.late: deque[tuple[float, memoryview]] = deque()  # when each piece leaves; an empty one is the end
        self.waiting, self.open, self.blocked = 0, True, False

    def read(self, seconds: float) -> None:
        """Take what has come."""
        try:
            piece = self.source.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self.open = bool(piece)
        self.waiting += len(piece)
        self.late.append((time.perf_counter() + seconds, memoryview(piece)))

    def write(self, now: float) -> None:
        """Pass on what is due."""
        self.blocked = False
        while self.late and self.late[0][0] <= now + SOON:
            due, piece = self.late.popleft()
            try:
                if not piece:
                    return self.target.shutdown(socket.SHUT_WR)
                sent = self.target.send(piece)
            except BlockingIOError:
                sent, self.blocked = 0, True
            except OSError:
                return self.late.clear()
            self.waiting -= sent
            if sent < len(piece):
                self.late.appendleft((due, piece[sent:]))
                self.blocked = True
                return None


def relay(seconds: float, targets: list[int]) -> None:
    """Pass connections on to these ports until standard input ends."""
    listeners = {socket.create_server(("127.0.0.1", 0)): target for target in targets}
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    flows: list[Flow] = []
    while True:
        now = time.perf_counter()
        for flow in flows:
            flow.write(now)
        coming = {flow.source: flow for flow in flows if flow.open and flow.waiting < MOST}
        blocked = [flow.target for flow in flows if flow.blocked]
        dues = [flow.late[0][0] for flow in flows if flow.late and not flow.blocked]
        wait = max(0.0, min(dues) - time.perf_counter()) if dues else None
        ready, _, _ = select.select([sys.stdin, *listeners, *coming], blocked, [], wait)
        for each in ready:
            if each in coming:
                coming[each].read(seconds)
            elif each in listeners:
                flows += _connected(each.accept()[0], listeners[each])
            else:
                return


def _connected(one: socket.socket, target: int) -> list[Flow]:
    other = socket.create_connection(("127.0.0.1", target))
    for each in (one, other):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return [Flow(one, other), Flow(other, one)]


if __name__ == "__main__":
    relay(float(sys.argv[1]), [int(port) for port in sys.argv[2:]])
