"""Where a collection's rows may live, and what is not possible there."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hybridrec.embedding.table import Table
from hybridrec.remedy import remedied


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


def refuse_on_gpu(tables: Iterable[Table], fused: bool, many: bool = False) -> None:
    """Raise for what is only possible on the CPU so far, or for one process and not many. Tables on the host may be."""
    if not fused:
        raise ValueError("fused=False makes plain parameters; build it on the CPU and move it with .to('cuda')")
    for table in tables if many else ():
        if table.dynamic and not table.on_host:
            raise remedied(
                ValueError,
                f"table {table.name!r} is dynamic, and several ranks divide rows that come and go in memory of their "
                "hosts only so far",
                call="give it where='host', beside tables on the GPUs; or rows= (and out_of_range='hash' for ids "
                "beyond them) or hashes=, or use device='cpu'",
                setting="have its rows on the host, beside tables on the GPU, or those of all tables by *: "
                f'model.tables=\'{{"{table.name}"={{where="host"}}}}\'; or give all tables so many rows, and ids '
                'beyond them a row by hash: model.tables=\'{"*"={rows=1000000, out_of_range="hash"}}\'; or leave '
                "--device out",
            )
