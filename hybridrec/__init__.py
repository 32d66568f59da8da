"""hybridrec trains recommender models on Parquet logs with PyTorch.

The names below are the public API. Each is loaded on first use, so that `import hybridrec` stays quick and a process
that needs no tensors never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec import data as data
    from hybridrec import embedding as embedding
    from hybridrec import metrics as metrics
    from hybridrec import models as models
    from hybridrec import optim as optim
    from hybridrec import parallel as parallel
    from hybridrec import serve as serve
    from hybridrec import train as train
    from hybridrec.embedding import EmbeddingCollection as EmbeddingCollection
    from hybridrec.embedding import Embeddings as Embeddings
    from hybridrec.embedding import IntegerLookup as IntegerLookup
    from hybridrec.embedding import Table as Table
    from hybridrec.embedding import fuse as fuse
    from hybridrec.parallel.ranks import init as init
    from hybridrec.parallel.shard import shard as shard
    from hybridrec.train import Trainer as Trainer
    from hybridrec.train.load import load as load
    from hybridrec.types import Batch as Batch
    from hybridrec.types import IdBlock as IdBlock
    from hybridrec.types import Ragged as Ragged

__version__ = "0.1.0"
__all__ = [
    "data",
    "Batch",
    "IdBlock",
    "Ragged",
    "embedding",
    "Table",
    "EmbeddingCollection",
    "Embeddings",
    "fuse",
    "IntegerLookup",
    "optim",
    "models",
    "metrics",
    "train",
    "Trainer",
    "load",
    "parallel",
    "init",
    "shard",
    "serve",
]

_ROOMS = ("data", "embedding", "optim", "models", "metrics", "train", "parallel", "serve")
_HOME = {
    "Batch": "hybridrec.types",
    "IdBlock": "hybridrec.types",
    "Ragged": "hybridrec.types",
    "Table": "hybridrec.embedding",
    "EmbeddingCollection": "hybridrec.embedding",
    "Embeddings": "hybridrec.embedding",
    "fuse": "hybridrec.embedding",
    "IntegerLookup": "hybridrec.embedding",
    "Trainer": "hybridrec.train",
    "init": "hybridrec.parallel.ranks",
    "shard": "hybridrec.parallel.shard",
    "load": "hybridrec.train.load",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"hybridrec.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hybridrec' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
