"""A run over many ranks: who they are, which rows each has, and what one of them does for all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from hybridrec.data.dataset import Dataset
from hybridrec.embedding import EmbeddingCollection
from hybridrec.parallel.ranks import VARIABLES, Ranks, init, ranks
from hybridrec.parallel.shard import shard
from hybridrec.parallel.watch import RankFailure, of_connection
from hybridrec.remedy import remedied
from hybridrec.train.agreement import agree_on_model

if TYPE_CHECKING:
    from hybridrec.server.placing import GivenServers

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


def sharded(
    model: nn.Module,
    ranks: Ranks | None,
    made: dict[str, Any],
    servers: GivenServers | None = None,
    staleness: int | None = None,
    training: bool = False,
) -> nn.Module:
    """The model on all ranks and servers, as it is where it is sharded already.

    Optimizers that were `made` must be of that one.
    """
    if is_sharded(model):
        if servers is not None or staleness is not None:
            raise ValueError("the model is sharded already; give servers= and staleness= to hybridrec.shard instead")
        return model
    if training and servers is None:
        refuse_unserved(model)
    if ranks is None and servers is None and staleness is None:
        return model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "the model is a DistributedDataParallel, which knows nothing of rows and counts uneven ranks alike; give "
            "the Trainer the model inside it"
        )
    for name, each in made.items():
        if isinstance(each, torch.optim.Optimizer):
            raise ValueError(
                f"{name} was made before the model was sharded over {_over(ranks)}, so it has other rows; give a "
                f"function that makes it ({name}=lambda it: {type(each).__name__}(it, lr=...)), or shard the model "
                "first: model = hr.shard(model)"
            )
    if ranks is not None:
        agree_on_model(model, ranks)
    return shard(model, servers=servers, staleness=staleness)


def _over(ranks: Ranks | None) -> str:
    return "servers" if ranks is None else f"{ranks.world} ranks"


def refuse_unserved(model: nn.Module) -> None:
    """Raise for a table that is to be trained on servers, where there are none."""
    for part in model.modules():
        for name, table in part.tables.items() if isinstance(part, EmbeddingCollection) else ():
            if table.where == "server":
                raise remedied(
                    ValueError,
                    f"table {name!r} says where='server', and there are no servers",
                    call='give the Trainer servers=["host:7000"], or leave where out',
                    setting="name them with --servers host:7000, or leave where out",
                )


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


def on_all(ranks: Ranks | None, work: Callable[[], None]) -> None:
    """Do this on all ranks. Where it fails on one, all raise at once: that one its error, the others one that tells it.

    >>> on_all(None, lambda: None)
    """
    if ranks is None:
        return work()
    error = None
    try:
        work()
    except Exception as raised:
        if of_connection(raised):
            raise
        error = raised
    if not int(ranks.sum(torch.tensor([int(error is not None)]))[0]):
        return None
    told = ranks.all_told(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed, why = next((rank, why) for rank, why in enumerate(told) if why is not None)
    at = "" if ranks.watch is None else f" at step {ranks.watch.step}"
    raise RankFailure(f"rank {failed} failed{at}: {why}")


def path_on_main(ranks: Ranks | None, work: Callable[[], Path | None]) -> Path | None:
    """The same for a path."""

    def found() -> str | None:
        path = work()
        return None if path is None else str(path)

    told = on_main(ranks, found)
    return None if told is None else Path(told)
