"""A run over many ranks: who they are, which rows each has, and what one of them does for all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from hybridrec.data.dataset import Dataset
from hybridrec.parallel.ranks import VARIABLES, Ranks, init, ranks
from hybridrec.parallel.shard import shard
from hybridrec.parallel.watch import RankFailure
from hybridrec.train.agreement import agree_on_model

Given = TypeVar("Given")


def join(timeout: float) -> Ranks | None:
    """The ranks that torchrun started, this process among them; None where it is alone."""
    if all(name in os.environ for name in VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1:
        return init(timeout)
    return ranks()


def is_main(ranks: Ranks | None) -> bool:
    """Whether this process writes and tells; of many ranks, rank 0 does."""
    return ranks is None or ranks.rank == 0


def is_sharded(model: nn.Module) -> bool:
    """Whether `hr.shard` made it."""
    return hasattr(model, "weigh") and isinstance(getattr(model, "module", None), nn.Module)


def inside(model: nn.Module) -> nn.Module:
    """The model that was sharded; one that was not is itself.

    >>> model = nn.Linear(1, 1)
    >>> inside(model) is model
    True
    """
    module = model.module if is_sharded(model) else model
    assert isinstance(module, nn.Module)
    return module


def sharded(model: nn.Module, ranks: Ranks | None, made: dict[str, Any]) -> nn.Module:
    """The model on all ranks, as it is where it is sharded already. Optimizers that were `made` must be of that one."""
    if ranks is None or is_sharded(model):
        return model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "the model is a DistributedDataParallel, which knows nothing of rows and counts uneven ranks alike; give "
            "the Trainer the model inside it"
        )
    for name, each in made.items():
        if isinstance(each, torch.optim.Optimizer):
            raise ValueError(
                f"{name} was made before the model was sharded over {ranks.world} ranks, so it has other rows; give a "
                f"function that makes it ({name}=lambda it: {type(each).__name__}(it, lr=...)), or shard the model "
                "first: model = hr.shard(model)"
            )
    agree_on_model(model, ranks)
    return shard(model)


def share_of(data: Any, ranks: Ranks | None) -> Any:
    """The rows of this rank. A Dataset is sharded by rows, unless it is sharded already; others are taken as they are.

    >>> share_of([1, 2], None)
    [1, 2]
    """
    if ranks is None or not isinstance(data, Dataset):
        return data
    part = data.part
    if part.world == 1:
        return data.shard(ranks.rank, ranks.world)
    if (part.rank, part.world) != (ranks.rank, ranks.world):
        raise ValueError(
            f"the dataset is the part of rank {part.rank} of {part.world}, and this is rank {ranks.rank} of "
            f"{ranks.world}; leave shard() to the Trainer, or call shard_for_rank()"
        )
    return data


def on_main(ranks: Ranks | None, work: Callable[[], Given]) -> Given:
    """What rank 0 finds, a JSON value, on all ranks; where it fails, all do.

    >>> on_main(None, lambda: 3)
    3
    """
    if ranks is None:
        return work()
    try:
        found, error = (work() if ranks.rank == 0 else None), None
    except Exception as raised:
        found, error = None, raised
    told = ranks.told({"found": found, "error": None if error is None else f"{type(error).__name__}: {error}"})
    if error is not None:
        raise error
    if told["error"] is not None:
        raise RankFailure(f"rank 0 failed: {told['error']}")
    return told["found"]


def path_on_main(ranks: Ranks | None, work: Callable[[], Path | None]) -> Path | None:
    """The same for a path."""

    def found() -> str | None:
        path = work()
        return None if path is None else str(path)

    told = on_main(ranks, found)
    return None if told is None else Path(told)
