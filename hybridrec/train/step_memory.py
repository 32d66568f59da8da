"""What a step takes of a card beside tables, estimated from a batch and the model: what is left goes to hot rows.

Batches and vectors are counted, and so is the grouping of gradients, since its arrays go by the ids. Ragged features
have as many as a graph has room for, so that longer ones fit too. What layers keep for their backward is guessed from
their weights: an input and an output for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.embedding.unfused import TableWeight
from hybridrec.train import feed
from hybridrec.train.fixed_batch import rooms
from hybridrec.train.late_loss import steps_ahead
from hybridrec.types import Batch

NUMBER = torch.float32.itemsize
BATCHES = feed.AHEAD + 1 + 1 + 1  # that wait, on its way, in the step, of the graph; beside those of late losses
SLOTS = 2  # int64 in place of ids: of the batch to come, and what a graph reads
VECTORS = 3  # themselves, their gradient, and another one, where parts of a model add theirs
LISTED = 65  # bytes of an id while gradients are grouped by row: lists, and what makes them
SHARED = 28  # more where bags are divided by their size, or ids have weights
NOTED = 13  # more for each id of a batch while those of dynamic tables get their rows
WORD = 12  # of a place in the list that makes them distinct, which has four to eight for each id
CHUNKS = 1 / 17 + 1 / 64  # sums of rows with many occurrences, for each id at most
KEPT = 2  # inputs and outputs of a layer: for the backward, and their gradients
PER_WEIGHT = 3  # a gradient, and the state of most optimizers
LOOKED_UP = (nn.Embedding, nn.EmbeddingBag, TableWeight)


class Looked(NamedTuple):
    """A feature of a batch: its table, how it is pooled, and its ids in this batch."""

    table: Table
    combiner: str
    ids: int

    @property
    def apart(self) -> bool:
        """Whether each id has a gradient of its own."""
        return self.combiner in ("none", "max")


@dataclass(frozen=True)
class StepMemory:
    """Bytes on a card by what they are for, in a step on batches of so many rows."""

    rows: int
    batches: int
    vectors: int
    grouping: int
    layers: int

    @property
    def total(self) -> int:
        return self.batches + self.vectors + self.grouping + self.layers

    def __str__(self) -> str:
        """
        >>> print(StepMemory(8192, 3 * 10**6, 5 * 10**6, 2 * 10**6, 10**6))
        11,000,000 for a step on batches of 8,192 rows: batches 3,000,000, vectors 5,000,000, grouping their gradients \
2,000,000, layers 1,000,000
        """
        return (
            f"{self.total:,} for a step on batches of {self.rows:,} rows: batches {self.batches:,}, vectors "
            f"{self.vectors:,}, grouping their gradients {self.grouping:,}, layers {self.layers:,}"
        )


def step_memory(model: nn.Module, batch: Batch, device: torch.device, accumulate: int = 1) -> StepMemory:
    """What steps on batches like this one take on a card that has the layers of the model and some of its tables."""
    counts, parts = rooms(batch.ids), [part for part in _collections(model) if part.device == device]
    ids, weights = sum(counts) * batch.ids.values.itemsize, batch.ids.weights
    batches = BATCHES + accumulate - 1 + steps_ahead(batch.ids.values.nbytes)
    looked = [list(_looked(part, dict(zip(batch.ids.names, counts, strict=True)))) for part in parts]
    weighted = weights is not None
    more = sum(counts) - len(batch.ids.values)  # ids, and their weights
    one = _bytes(batch) + more * (batch.ids.values.itemsize + (weights.itemsize if weights is not None else 0))
    return StepMemory(
        rows=len(batch),
        batches=batches * one + SLOTS * ids,
        vectors=accumulate * sum(_vectors(each, len(batch)) for each in looked),
        grouping=accumulate * sum(_grouping(each, weighted) for each in looked),
        layers=_layers(model, device, len(batch)),
    )


def _collections(model: nn.Module) -> Iterator[EmbeddingCollection]:
    return (part for part in model.modules() if isinstance(part, EmbeddingCollection))


def _looked(part: EmbeddingCollection, counts: Mapping[str, int]) -> Iterator[Looked]:
    """The features of a collection that a batch has so many ids of."""
    for table in part.tables.values():
        for name, combiner in table.combiners.items():
            yield Looked(table, combiner, table.group * counts.get(name, 0))


def _vectors(looked: Iterable[Looked], rows: int) -> int:
    """Those of pooled features for each row, those of sequences for each id; a max has gradients for each id too."""
    looked = list(looked)
    pooled = sum(rows * each.table.dim for each in looked if each.combiner != "none")
    apart = sum(each.ids * each.table.dim for each in looked if each.apart)
    joined = pooled + apart if apart else 0  # all gradients in one piece
    return NUMBER * (VECTORS * (pooled + apart) + joined)


def _grouping(looked: Iterable[Looked], weighted: bool) -> int:
    """Lists of the ids of tables on the card, what is noted of them, and the sums of the widest class of them."""
    mine = [each for each in looked if not each.table.on_host]
    shared = weighted or any(each.combiner in ("mean", "sqrtn") for each in mine)
    ids_of: dict[int, int] = {}  # by dimension
    for each in mine:
        ids_of[each.table.dim] = ids_of.get(each.table.dim, 0) + each.ids
    sums = max((NUMBER * dim * CHUNKS * ids for dim, ids in ids_of.items()), default=0)
    ids = sum(ids_of.values())
    noted = NOTED * ids + WORD * (4 << max(0, ids - 1).bit_length()) if any(each.table.dynamic for each in mine) else 0
    return ids * (LISTED + SHARED * shared) + noted + int(sums)


def _layers(model: nn.Module, device: torch.device, rows: int) -> int:
    """Weights [..., a, b] have inputs and outputs of a and b numbers for each row, but for those that are looked up."""
    of_rows = {id(part.weight) for part in model.modules() if isinstance(part, LOOKED_UP)}
    found = [part for part in model.parameters() if part.device == device]
    layers = [part for part in found if part.dim() > 1 and id(part) not in of_rows]
    sides = sum(part.shape[:-2].numel() * sum(part.shape[-2:]) for part in layers)
    return NUMBER * KEPT * rows * sides + PER_WEIGHT * sum(part.nbytes for part in found if part.requires_grad)


def _bytes(batch: Batch) -> int:
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    batch.map_tensors(count)
    return sum(sizes)
