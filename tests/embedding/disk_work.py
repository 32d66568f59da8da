"""Work on a table by native code and numpy alone, and processes that do it until somebody kills them.

All numbers are whole, so that one update lost, doubled or torn is seen exactly.
"""

from __future__ import annotations

import math
import os
import sys

import numpy as np

from hybridrec import _native

DIM, IDS = 6, 6000
SMALL, LARGE = 3000, 10**6  # capacities: one that makes rows go, one that does not
SPEC = _native.RowSpec(_native.table_key("user", 0), DIM, "float32", "constant", 0.0)
NOBODY = 2**64 - 1  # as the number of removals: slots are looked at again


def policy(capacity: int) -> tuple[int, str, int, float, int]:
    return capacity, "lru", 0, 1.0, 2


def in_memory(capacity: int) -> _native.HashTable:
    """The table without a file."""
    table = _native.HashTable(SPEC, *policy(capacity))
    table.attach([DIM], [0.0])
    return table


def on_disk(path: str, capacity: int, read_only: bool = False) -> _native.DiskTable:
    """The table in a directory."""
    table = _native.DiskTable(SPEC, *policy(capacity), path, "user", 0, read_only=read_only)
    if not table.rule:
        table.set_rule("momentum")
        table.attach([DIM], [0.0])
    return table


class Work:
    """Steps by number: each is the same whenever it is done, and ends with an update whose tag is its number."""

    def __init__(self, table: _native.HashTable, capacity: int) -> None:
        self.table, self.capacity = table, capacity
        self.update = _native.RowUpdate([table])
        self.set = _native.TableSet([table], [(0, "none", 1)])
        self.layout = _native.BlockLayout([0], [1], [-1])

    def parts(self, number: int) -> list:
        """What a step is made of, to be called one after another."""
        draw = np.random.default_rng(number)
        ids = np.unique(draw.integers(0, IDS, int(draw.integers(1, 900))) ** 2 // IDS) * 1_000_003
        ids = np.repeat(ids, 2)  # twice, which lets them in
        parts = [lambda: self.admit(ids), lambda: self.apply(ids, number)]
        if number % 7 == 3:
            parts.insert(0, lambda: self.table.erase(ids.ctypes.data, len(ids) // 2))
        if number % 11 == 5 and self.capacity == LARGE:  # else a load that was undone has kept rows from going
            parts.insert(0, lambda: self.load(np.unique(ids)[:100] + 1, number))
        if number % 83 == 82:
            parts.insert(0, self.table.clear)
        return parts

    def step(self, number: int) -> None:
        for part in self.parts(number):
            part()

    def admit(self, ids: np.ndarray) -> None:
        self.slots = np.empty(len(ids), np.uint32)
        self.table.admit(ids.ctypes.data, len(ids), self.slots.ctypes.data)

    def apply(self, ids: np.ndarray, number: int) -> None:
        grads = np.full((len(ids), DIM), number % 5 + 1, np.float32)
        work = ids.ctypes.data, [0, len(ids)], 0, 0, len(ids), self.slots.ctypes.data, 0, 0, [grads.ctypes.data]
        pending = _native.Pending(self.set, self.layout, *work, [], [NOBODY])
        step = _native.RowStep("momentum", [1, 1, 0, 0, 0, 0, 0, 0, 0, math.inf, math.inf, 1], number + 1)
        self.update.apply([pending], [step], False, [], [(7, 1, number)])

    def load(self, ids: np.ndarray, number: int) -> None:
        slots, rows = np.empty(len(ids), np.uint32), np.full((len(ids), DIM), number, np.float32)
        state = rows / 2
        disk = isinstance(self.table, _native.DiskTable)
        if disk:
            self.table.begin()
        self.table.put(ids.ctypes.data, len(ids), slots.ctypes.data)
        self.table.scatter(slots.ctypes.data, len(ids), rows.ctypes.data)
        self.table.scatter_state(0, slots.ctypes.data, len(ids), state.ctypes.data)
        if disk:
            self.table.done()


def done(table: _native.DiskTable) -> int:
    """The number of the last step that was finished, 0 before the first."""
    return {source: number for source, _, number in table.tags()}.get(7, 0)


def content(table: _native.HashTable) -> tuple[bytes, bytes, bytes]:
    """Ids, rows and state, in order of id."""
    slots = table.live()
    ids = np.empty(len(slots), np.int64)
    rows, state = np.empty((2, len(slots), DIM), np.float32)
    table.ids(slots.ctypes.data, len(slots), ids.ctypes.data)
    table.gather(slots.ctypes.data, len(slots), rows.ctypes.data)
    table.gather_state(0, slots.ctypes.data, len(slots), state.ctypes.data)
    return ids.tobytes(), rows.tobytes(), state.tobytes()


def say(what: object) -> None:
    """A line, or nothing of it, if it is the last that is heard of this process."""
    os.write(1, f"{what}\n".encode())


def work_on(path: str, capacity: int, back: bool) -> None:
    """Work for ever, or back and forth, and say after each step which it was."""
    table = on_disk(path, capacity)
    work = Work(table, capacity)
    start = number = done(table)
    while True:
        say(number)
        number += 1
        if back and number > start + 3:
            table.roll_back("here")
            number = done(table) + 1
        work.step(number)


def main() -> None:
    """For each line of input, have a process work, and say when it is dead."""
    for line in sys.stdin:
        path, capacity, back = line.split()
        child = os.fork()
        if child == 0:
            say(f"process {os.getpid()}")
            work_on(path, int(capacity), back == "back")
        os.waitpid(child, 0)
        say("dead")


if __name__ == "__main__":
    assert "torch" not in sys.modules, "native code alone needs no torch"
    main()
