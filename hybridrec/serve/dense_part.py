"""The dense part of a model as a program of torch.export: everything but the tables.

While the model is traced, stand-ins take the place of its collections and hand out the program's inputs. So any model
that reads its batch through collections and `batch.dense` can be exported, whatever it does with the vectors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hybridrec.embedding import EmbeddingCollection, Embeddings
from hybridrec.serve.stand_in import Collections, StandIn, TracedBatch, standing_in
from hybridrec.types import Ragged


@dataclass(frozen=True)
class Outcome:
    """What becomes of a model's outputs: the function that makes scores of them, and whether layers run in bfloat16."""

    scores: Callable[[Tensor], Tensor] = torch.sigmoid
    bf16: bool = False


class _Program(nn.Module):
    """Scores of a model from the outputs of its collections and the dense numbers."""

    def __init__(self, model: nn.Module, stands: list[StandIn], names: tuple[str, ...], outcome: Outcome) -> None:
        super().__init__()
        self.model, self._stands, self._names, self._outcome = model, stands, names, outcome

    def forward(self, *inputs: Tensor) -> Tensor:
        rest = list(inputs)
        for stand in self._stands:
            stand.vectors = take(stand.real[0], rest)
        with torch.autocast("cpu", torch.bfloat16, enabled=self._outcome.bf16):
            outputs = self.model(TracedBatch(rest.pop(0), self._names))
        return self._outcome.scores(outputs.float()).float()


def give(vectors: Embeddings) -> list[Tensor]:
    """What a collection looked up, as inputs of the program: `flat`, then values and offsets of every sequence."""
    made = [vectors.flat]
    for sequence in vectors.sequences.values():
        made += [sequence.flat, sequence.offsets]
    return made


def take(collection: EmbeddingCollection, inputs: list[Tensor]) -> Embeddings:
    """The opposite of `give`: takes its inputs from the front of the list."""
    flat = inputs.pop(0)
    names = [name for table in collection.tables.values() for name, how in table.combiners.items() if how == "none"]
    sequences = {name: Ragged.trusted(inputs.pop(0), inputs.pop(0)) for name in names}
    return Embeddings(collection.features, collection.dims, flat, sequences)


def scores_of(program: Callable[..., Tensor], inputs: list[Tensor]) -> Tensor:
    """The scores of all rows. torch.export takes every size for 2 or more, so fewer rows or items get company."""
    rows = inputs[-1].shape[0]
    if rows > 1 and all(each.shape[0] > 1 for each in inputs):
        return program(*inputs)
    return program(*_accompanied(inputs))[:rows]


def _accompanied(inputs: list[Tensor]) -> list[Tensor]:
    """Two rows of zeros more, the last with two items of zeros in every sequence."""
    made = []
    for each in inputs:
        if each.dtype == torch.int64:  # offsets
            made.append(torch.cat([each, each[-1:], each[-1:] + 2]))
        else:
            made.append(torch.cat([each, each.new_zeros(2, each.shape[1])]))
    return made


def trace(
    model: nn.Module, collections: Collections, dense_names: tuple[str, ...], outcome: Outcome
) -> torch.export.ExportedProgram:
    """The program of a model in eval mode, for any number of rows; checked against the model before it is given."""
    with standing_in(model, collections) as stands, torch.no_grad():
        program = on_cpu(_Program(model, stands, dense_names, outcome), collections).eval()
        example = example_inputs(collections, dense_names, rows=5)
        shapes = tuple({0: torch.export.Dim.AUTO} for _ in example)
        exported = torch.export.export(program, tuple(example), dynamic_shapes=(shapes,), strict=False)
        _check(exported, program, collections, dense_names)
    return exported


def elsewhere(program: nn.Module) -> bool:
    """Whether some of it is not on the CPU."""
    return any(part.device.type != "cpu" for part in (*program.parameters(), *program.buffers()))


def on_cpu(program: nn.Module, collections: Collections) -> nn.Module:
    """The program itself, or a copy on the CPU where some of it is elsewhere; collections are not copied with it."""
    if not elsewhere(program):
        return program
    return copy.deepcopy(program, {id(each): each for each in collections.values()}).cpu()


def example_inputs(collections: Collections, dense_names: tuple[str, ...], rows: int) -> list[Tensor]:
    """Inputs of the right shapes, drawn at random: every sequence has another number of items."""
    draw = torch.Generator().manual_seed(rows)
    made, items = [], 2 * rows
    for collection in collections.values():
        dims = dict(zip(collection.features, collection.dims, strict=True))
        lists = [n for table in collection.tables.values() for n, how in table.combiners.items() if how == "none"]
        made.append(torch.randn(rows, sum(d for name, d in dims.items() if name not in lists), generator=draw))
        for name in lists:
            items += 1
            made.append(torch.randn(items if rows else 0, dims[name], generator=draw))
            cuts = torch.randint(0, items + 1, (max(rows - 1, 0),), generator=draw).sort().values
            made.append(
                torch.cat([torch.zeros(1, dtype=torch.int64), cuts, torch.tensor([items] if rows else [])]).long()
            )
    return [*made, torch.randn(rows, len(dense_names), generator=draw)]


def _check(
    exported: torch.export.ExportedProgram, program: nn.Module, collections: Collections, names: tuple[str, ...]
) -> None:
    """Other numbers of rows than the example's must give what the model gives."""
    run = exported.module()
    for rows in (1, 2, 7, 0):
        inputs = example_inputs(collections, names, rows)
        found, wanted = scores_of(run, inputs), program(*inputs)
        if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-6, atol=1e-7, equal_nan=True):
            raise ValueError(
                f"the exported program gives other scores than the model for {rows} rows; its forward may depend on "
                "the number of rows in Python (if, for, len), which torch.export fixes at the example's"
            )
