"""How fast does this machine copy memory? 256 MiB from tensor to tensor, with the contenders' number of threads."""

from __future__ import annotations

import time
from statistics import median

import torch
from embedding_step import Task, received, say

BYTES = 256 * 2**20


def bytes_per_second(task: Task) -> float:
    """Bytes copied, counted once, over the median of `reps` copies."""
    source = torch.ones(BYTES // 4)
    target = torch.zeros_like(source)
    times = []
    for _ in range(task.warm + task.reps):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return BYTES / median(times[task.warm :])


if __name__ == "__main__":
    say({"bytes_per_s": bytes_per_second(received())})
