"""What a reader needs to know of the machine to judge a figure."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    lines = _lines("/proc/cpuinfo")
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def load() -> float:
    """How many threads ran at a time in the last minute."""
    return round(os.getloadavg()[0], 2)


def machine() -> dict[str, Any]:
    total = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    flags = next((line.split() for line in _lines("/proc/cpuinfo") if line.startswith("flags")), [])
    huge = _lines("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "memory_gib": round(total / 2**20, 1),
        "simd": [flag for flag in ("avx2", "avx512f", "avx512bw", "avx512vl") if flag in flags],
        "huge_pages": huge[0] if huge else "unknown",
        "load": load(),
        "system": platform.platform(),
    }


def gpu() -> dict[str, Any]:
    """The first GPU, its driver, and what talks to it; nothing where there is none."""
    import torch

    if not torch.cuda.is_available():
        return {}
    about = torch.cuda.get_device_properties(0)
    driver = next(iter(_lines("/proc/driver/nvidia/version")), "")
    found = re.search(r"\d+\.\d+(\.\d+)?", driver)
    return {
        "name": about.name,
        "memory_gib": round(about.total_memory / 2**30, 1),
        "driver": _driver() if found is None else found.group(),
        "cuda": torch.version.cuda,
    }


def short_name(answer: dict[str, Any]) -> str:
    """That of the GPU which gave an answer, as files are named for it: h200."""
    return answer["machine"]["gpu"]["name"].split()[-1].lower()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []
