"""What a run ran on: versions, processor, threads, GPU. `hybridrec doctor` prints it, a run directory keeps it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "pyarrow", "numpy", "safetensors", "triton", "pandas", "polars", "tensorboard")


def environment() -> dict[str, Any]:
    """Everything at once, as JSON values.

    >>> sorted(environment())
    ['gpu', 'machine', 'native', 'packages', 'python', 'threads']
    """
    import torch

    return {
        "python": {"version": platform.python_version(), "path": sys.executable},
        "packages": {"hybridrec": _own_version(), **_versions(), "torch": torch.__version__},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "cpu": processor(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory(),
        },
        "native": native(),
        "threads": {"torch": torch.get_num_threads(), "cores": os.cpu_count()},
        "gpu": gpu(),
    }


def native() -> dict[str, Any]:
    """Whether the native core loads, and the instruction set that its kernels use."""
    try:
        core = importlib.import_module("hybridrec._native")
    except ImportError as error:
        return {"loaded": False, "why": f"{error}; reinstall with: pip install --force-reinstall hybridrec"}
    return {
        "loaded": True,
        "path": getattr(core, "__file__", None),
        "instructions": core.instruction_set(),
        "threads": core.threads(),
    }


def gpu() -> dict[str, Any]:
    """Whether GPU kernels are on, and why not."""
    import torch

    if torch.version.cuda is None:
        why = "this torch is built for the CPU; install one with CUDA from pytorch.org"
    elif not torch.cuda.is_available():
        why = "torch has CUDA, but sees no device; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    elif not _has_gpu_kernels():
        why = "GPU kernels need Triton, which is not installed: pip install triton"
    else:
        return {"kernels": "on", "devices": [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]}
    return {"kernels": "off", "why": why}


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _has_gpu_kernels() -> bool:
    return importlib.util.find_spec("triton") is not None


def _own_version() -> str:
    from hybridrec import __version__

    return __version__


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
