"""How much memory does an epoch need? Streams a file with shuffle in this process and samples its own VmRSS.

    python benchmarks/rss.py FILE --batch 65536 --threads 2

`data.py` starts it as a fresh process. The last line is one JSON object: its peak, size after the imports,
trend (mean of the last third of the samples over the mean of the middle third) and the samples.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

import workloads

import hybridrec as hr

POINTS = 200  # at most so many samples are kept in the JSON


def resident_mb(key: str = "VmRSS") -> float:
    """A line of /proc/self/status in 10^6 bytes: VmRSS is the current size, VmHWM the highest so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/self/status has no {key}: the memory figure needs Linux")


def sample(samples: list[tuple[float, float]], stop: threading.Event, every: float) -> None:
    start = time.perf_counter()
    while not stop.wait(every):
        samples.append((time.perf_counter() - start, resident_mb()))


def trend(values: list[float]) -> float | None:
    """Mean of the last third over the mean of the middle third; None when there are too few samples."""
    third = len(values) // 3
    if third == 0:
        return None
    middle, last = values[third : 2 * third], values[-third:]
    return sum(last) / len(last) / (sum(middle) / len(middle))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two samples")
    args = parser.parse_args()
    ds = hr.data.parquet(str(args.file), label=workloads.LABEL, batch_size=args.batch, threads=args.threads)
    imported = resident_mb()
    samples: list[tuple[float, float]] = []
    stop = threading.Event()
    sampler = threading.Thread(target=sample, args=(samples, stop, args.every), daemon=True)
    sampler.start()
    start, rows = time.perf_counter(), 0
    for batch in ds.shuffle(seed=0):
        rows += len(batch)
    seconds = time.perf_counter() - start
    stop.set()
    sampler.join()
    thin = samples[:: max(1, -(-len(samples) // POINTS))]
    answer = {
        "peak_rss_mb": round(resident_mb("VmHWM"), 1),
        "after_import_mb": round(imported, 1),
        "trend": trend([mb for _, mb in samples]),
        "rows": rows,
        "rows_per_s": rows / seconds,
        "file_gb": args.file.stat().st_size / 1e9,
        "samples": [(round(t, 2), round(mb, 1)) for t, mb in thin],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
