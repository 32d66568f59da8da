"""hybridrec trains recommender models on Parquet logs with PyTorch.

The names below are the public API. Each is loaded on first use, so that `import hybridrec` stays quick and a process
that needs no tensors never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec import data as data
    from hybridrec.types import Batch as Batch
    from hybridrec.types import IdBlock as IdBlock
    from hybridrec.types import Ragged as Ragged

__version__ = "0.1.0"
__all__ = ["data", "Batch", "IdBlock", "Ragged"]

_HOME = {"Batch": "hybridrec.types", "IdBlock": "hybridrec.types", "Ragged": "hybridrec.types"}


def __getattr__(name: str) -> Any:
    if name == "data":
        return importlib.import_module("hybridrec.data")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hybridrec' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
