"""Where a collection's rows may live, and what is not possible there."""

from __future__ import annotations

import torch


def device_of(given: torch.device | str) -> torch.device:
    """The device, with its number: "cuda" is the current one.

    >>> device_of("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(given)
    except RuntimeError:
        device = None  # no name that torch knows
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {str(given)!r}; rows live on 'cpu' or on 'cuda'")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ValueError(f"device is {str(given)!r}, but torch {torch.__version__} finds no GPU; leave device out")
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def on_host(device: torch.device) -> bool:
    """Whether native code looks rows up there, not kernels of a GPU.

    >>> on_host(torch.device("cpu"))
    True
    """
    return device.type == "cpu"


def refuse_on_gpu(fused: bool) -> None:
    """Raise for what is only possible on the CPU."""
    if not fused:
        raise ValueError("fused=False makes plain parameters; build it on the CPU and move it with .to('cuda')")
