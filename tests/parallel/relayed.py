"""Joining the other ranks through a relay.

Gloo connects every pair of ranks directly, by the address that each writes to the store they meet at. A rank that joins
here reads the store through `RelayedStore`, which puts an address of the relay in the place of each peer's. Which of
two ranks connects to the other depends on the order of their ports, so the relay listens on a port that lies in the
same order.
"""

from __future__ import annotations

import json
import os
import re
import socket
from datetime import timedelta

from torch import distributed
from torch._C._distributed_c10d import Store, TCPStore

from hybridrec.parallel.ranks import TIMEOUT, Ranks, init

ADDRESS = re.compile(rb"\x02\x00(..)\x7f\x00\x00\x01\x00{8}", re.DOTALL)  # sockaddr_in of 127.0.0.1


def join(port: int, timeout: float = TIMEOUT) -> Ranks | None:
    """What `hr.init` does, with all ranks reached through the relay at this port: they share no memory."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        waits = timedelta(seconds=timeout)
        serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        host, meet = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = RelayedStore(TCPStore(host, meet, world, serves, waits, wait_for_workers=False), port)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=waits)
    return init(timeout=timeout, shared=False)


_kept: list[RelayedStore] = []  # torch holds their native half alone


class RelayedStore(Store):
    """A store in which the addresses of other ranks are those of the relay."""

    def __init__(self, inner: TCPStore, port: int) -> None:
        super().__init__()
        self._inner, self._port = inner, port
        self._own: dict[str, bytes] = {}  # what this rank wrote
        _kept.append(self)

    def set(self, key: str, value: bytes) -> None:
        self._own[key] = value
        self._inner.set(key, value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        found = self._inner.get(key)
        theirs = ADDRESS.search(found)
        if key in self._own or theirs is None:
            return found
        own = next((at for at in map(ADDRESS.search, self._of_group(key)) if at is not None), None)
        assert own is not None, f"this rank has written no address beside {key!r}"
        port = self._relayed(int.from_bytes(theirs[1], "big"), int.from_bytes(own[1], "big"))
        return found[: theirs.start(1)] + port.to_bytes(2, "big") + found[theirs.end(1) :]

    def _of_group(self, key: str) -> list[bytes]:
        """What this rank wrote under names that differ from this key in the last part alone."""
        place = key.rpartition("/")[0]
        return [value for name, value in self._own.items() if name.rpartition("/")[0] == place]

    def _relayed(self, target: int, beside: int) -> int:
        with socket.create_connection(("127.0.0.1", self._port)) as asked, asked.makefile("rw") as lines:
            lines.write(json.dumps({"target": target, "beside": beside}) + "\n")
            lines.flush()
            return int(lines.readline())

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        self._inner.wait(keys) if timeout is None else self._inner.wait(keys, timeout)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self._inner.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._inner.delete_key(key)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:  # type: ignore[override]
        return self._inner.compare_set(key, expected, desired)  # type: ignore[arg-type]

    def clone(self) -> RelayedStore:
        """Another connection to the same store."""
        made = RelayedStore(self._inner.clone(), self._port)  # type: ignore[arg-type]
        made._own = self._own
        return made

    def num_keys(self) -> int:
        return self._inner.num_keys()
