"""A table that is larger than the memory of its process: every row is updated, and looked at in the end.

python -m tests.embedding.beyond_memory GROUP FOLDER ROWS STEPS joins the memory control group in the folder GROUP,
and works. All numbers are whole, so that one update lost, doubled or torn is seen exactly. The last line is JSON.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hybridrec import _native

DIM, PART = 16, 20_000  # columns; ids of a step
SPEC = _native.RowSpec(_native.table_key("user", 0), DIM, "float32", "constant", 0.0)
STEP = _native.RowStep("momentum", [1, 0, 0, 0, 0, 0, 0, 0, 0, math.inf, math.inf, 1], 1)  # a row less its gradient


class Large:
    """The table, and how often each of its ids was updated."""

    def __init__(self, folder: str, rows: int) -> None:
        self.table = _native.DiskTable(SPEC, rows, "none", 0, 1.0, 1, folder, "user", 0)
        self.table.set_rule("momentum")
        self.table.attach([DIM], [0.0])
        self.times = np.zeros(rows, np.uint8)
        self._update = _native.RowUpdate([self.table])
        self._set = _native.TableSet([self.table], [(0, "none", 1)])
        self._layout = _native.BlockLayout([0], [1], [-1])

    def parts(self) -> Iterator[np.ndarray]:
        """All ids."""
        for first in range(0, len(self.times), PART):
            yield np.arange(first, min(first + PART, len(self.times)), dtype=np.int64)

    def slots(self, ids: np.ndarray) -> np.ndarray:
        slots = np.empty(len(ids), np.uint32)
        self.table.admit(ids.ctypes.data, len(ids), slots.ctypes.data)
        return slots

    def train(self, ids: np.ndarray) -> None:
        slots, grads = self.slots(ids), np.repeat(gradient(ids)[:, None], DIM, axis=1)
        work = ids.ctypes.data, [0, len(ids)], 0, 0, len(ids), slots.ctypes.data, 0, 0, [grads.ctypes.data]
        self._update.apply([_native.Pending(self._set, self._layout, *work, [], [0])], [STEP], False, [], [None])
        self.times[ids] += 1

    def wrong(self) -> int:
        """Rows that are not what their updates make them."""
        found, rows = 0, np.empty((PART, DIM), np.float32)
        for ids in self.parts():
            slots = self.slots(ids)
            self.table.gather(slots.ctypes.data, len(ids), rows.ctypes.data)
            wanted = -gradient(ids) * self.times[ids]
            found += int((rows[: len(ids)] != wanted[:, None]).any(axis=1).sum())
        return found


def huge_pages(name: str) -> bool:
    """Whether any part of this file is mapped to be read in huge pages."""
    mine = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:  # addresses: a mapping begins
            mine = line.endswith(name)
        elif mine and line.startswith("VmFlags:") and " hg" in line:
            return True
    return False


def gradient(ids: np.ndarray) -> np.ndarray:
    return (ids % 7 + 1).astype(np.float32)


def main(group: str, folder: str, rows: int, steps: int) -> None:
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    start, large = time.perf_counter(), Large(folder, rows)
    for ids in large.parts():
        large.train(ids)
    filled, draw = time.perf_counter(), np.random.default_rng(0)
    for _ in range(steps):
        large.train(np.unique(draw.integers(0, rows, PART)))
    done = time.perf_counter()
    answer = {
        "wrong": large.wrong(),
        "file_bytes": sum(path.stat().st_size for path in Path(folder).iterdir()),
        "rows_filled_per_s": rows / (filled - start),
        "rows_updated_per_s": steps * PART / (done - filled),
        "huge_pages": huge_pages("table.rows"),
        "reads_from_disk": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    assert "torch" not in sys.modules, "native code alone needs no torch"
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
