"""Which server has the row of an id: rendezvous hashing, a pure function of the id and the number of servers.

Every server j draws a number for the id, hash(id, j), and the largest wins. So of n + 1 servers the last one takes
1 / (n + 1) of the ids from the n before it, and no other id moves. `csrc/router.cpp` draws them.
"""

from __future__ import annotations

import numpy as np

from hybridrec import _native

SEED = 0x53455256  # of server 0, the next ones have the next numbers; other hashes of ids have other seeds


def owners(ids: np.ndarray, count: int) -> np.ndarray:
    """The server of each id, int32 [n].

    >>> owners(np.array([1, 2, 3, 4]), 3)
    array([0, 2, 1, 2], dtype=int32)
    >>> two, three = owners(np.arange(9000), 2), owners(np.arange(9000), 3)
    >>> set(three[two != three].tolist())
    {2}
    """
    if count < 1:
        raise ValueError(f"there are {count} servers; at least one must hold the rows")
    ids, found = np.ascontiguousarray(ids, dtype=np.int64), np.empty(len(ids), np.int32)
    _native.servers_of(ids.ctypes.data, len(ids), count, found.ctypes.data)
    return found


def drawn_owners(ids: np.ndarray, count: int) -> np.ndarray:
    """The same in NumPy, for tests."""
    draws = np.empty((count, len(ids)), np.uint64)
    for server, line in enumerate(draws):
        _native.hash_int64(ids.ctypes.data, len(ids), line.ctypes.data, SEED + server)
    return draws.argmax(axis=0).astype(np.int32)


def by_server(ids: np.ndarray, count: int) -> list[np.ndarray]:
    """For each server, the positions of its ids.

    >>> [at.tolist() for at in by_server(np.array([1, 2, 3, 4]), 3)]
    [[0], [2], [1, 3]]
    """
    if count == 1:
        return [np.arange(len(ids))]
    found = owners(ids, count)
    return [np.flatnonzero(found == server) for server in range(count)]
