"""The norm of gradients that servers will add up: of each row the sum over all trainers, which none has alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hybridrec.parallel.exchange import Exchange
from hybridrec.server.placement import by_server

Part = tuple[np.ndarray, np.ndarray]  # ids, and their gradients


def added_up(parts: Sequence[Part]) -> Part:
    """Each id once, with the sum of its gradients in the order in which they came.

    >>> added_up([(np.array([7, 5]), np.ones((2, 1), np.float32)), (np.array([7]), np.ones((1, 1), np.float32))])[1]
    array([[1.],
           [2.]], dtype=float32)
    """
    ids, gradients = np.concatenate([ids for ids, _ in parts]), np.concatenate([each for _, each in parts])
    unique, inverse = torch.from_numpy(ids).unique(return_inverse=True)
    sums = torch.zeros(len(unique), gradients.shape[1]).index_add_(0, inverse, torch.from_numpy(gradients))
    return unique.numpy(), sums.numpy()


def squares(tables: Sequence[Part], exchange: Exchange) -> list[float]:
    """Of each table: the squares of its summed gradients, those of this trainer's share of the ids. All call it.

    Gradients of a row meet on one trainer, and are added up in the order of ranks, as servers do. Ids that are sent
    ahead of lookups have another channel than this.
    """
    if exchange.world == 1:
        return [_square(gradients) for _, gradients in tables]
    places = [by_server(ids, exchange.world) for ids, _ in tables]
    mine = torch.tensor([[len(at[rank]) for at in places] for rank in range(exchange.world)])  # [world, tables]
    theirs = exchange.vectors(mine, [1] * exchange.world, [1] * exchange.world, "sums").wait()
    dims = torch.tensor([gradients.shape[1] for _, gradients in tables])
    ids = [ids[at[rank]] for rank in range(exchange.world) for (ids, _), at in zip(tables, places, strict=True)]
    rows = [
        each[at[rank]].ravel() for rank in range(exchange.world) for (_, each), at in zip(tables, places, strict=True)
    ]
    all_ids = _sent(exchange, ids, mine, theirs)
    all_rows = _sent(exchange, rows, mine * dims, theirs * dims)
    found = []
    for table, dim in enumerate(dims.tolist()):
        parts = [(all_ids[rank][table], all_rows[rank][table].reshape(-1, dim)) for rank in range(exchange.world)]
        found.append(_square(added_up(parts)[1]))
    return found


def _sent(
    exchange: Exchange, parts: list[np.ndarray], mine: torch.Tensor, theirs: torch.Tensor
) -> list[list[np.ndarray]]:
    """Numbers for each rank, table by table; those that have come, by rank and table."""
    message = torch.from_numpy(np.concatenate(parts))
    arrived = exchange.vectors(message, mine.sum(1).tolist(), theirs.sum(1).tolist(), "sums").wait()
    flat = iter(arrived.split(theirs.flatten().tolist()))
    return [[next(flat).numpy() for _ in range(theirs.shape[1])] for _ in range(exchange.world)]


def _square(gradients: np.ndarray) -> float:
    return float(np.square(gradients, dtype=np.float64).sum())
