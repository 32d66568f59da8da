"""Memory of long trainings: bounded, given back after each step, and held by nobody who is done with it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.ops.pooled_lookup.op import MOST_PLANS
from hybridrec.optim import SGD, Adagrad, Adam
from hybridrec.types import IdBlock
from tests.embedding.batches import COMBINERS, random_block

MB = 1 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024


def growth(turn: Callable[[int], None], warm: int, turns: int) -> int:
    """How many bytes more there are after so many turns than after the warm-up."""
    for number in range(warm):
        turn(number)
    before = resident()
    for number in range(warm, warm + turns):
        turn(number)
    return resident() - before


class Model(nn.Module):
    """Every combiner, a table that grows and evicts, and a layer above."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        names = {combiner: combiner for combiner in COMBINERS}
        fixed = Table("fixed", dim, rows=2000, features=list(names), combiner=names)
        self.emb = EmbeddingCollection([fixed, Table("grown", dim, capacity=4000)])
        self.layer = nn.Linear(5 * dim, 1)

    def forward(self, ids: IdBlock) -> torch.Tensor:
        out = self.emb(ids)
        return self.layer(out.flat).sum() + out["none"].flat.square().sum()


def batch(size: int, seed: int) -> IdBlock:
    block = random_block(dict.fromkeys(COMBINERS, 2000), size, seed)
    grown = torch.randint(0, 2**40, (size,), generator=torch.Generator().manual_seed(seed))
    return IdBlock.from_ragged({**{name: block[name] for name in COMBINERS}, "grown": grown})


def trainer(model: Model, kind: Any = Adagrad) -> Callable[[int], None]:
    rows, dense = kind(model, lr=0.01), torch.optim.SGD(model.parameters(), lr=0.01)

    def turn(number: int) -> None:
        dense.zero_grad()
        model(batch(1 + number * 977 % 3000, number)).backward()
        dense.step()
        rows.step()

    return turn


def test_batches_of_changing_size_do_not_grow_the_process():
    assert growth(trainer(Model()), warm=40, turns=120) < 24 * MB


@pytest.mark.slow
def test_a_long_training_does_not_grow_the_process():
    assert growth(trainer(Model(), Adam), warm=200, turns=1500) < 24 * MB


def test_lookups_without_training_do_not_grow_the_process():
    model = Model().eval()

    def turn(number: int) -> None:
        with torch.no_grad():
            model(batch(1 + number * 977 % 3000, number))

    assert growth(turn, warm=40, turns=120) < 24 * MB


def test_collections_made_and_thrown_away_leave_nothing():
    def turn(number: int) -> None:
        emb = EmbeddingCollection([Table("t", 64, rows=20_000), Table("u", 64, capacity=20_000)])
        rows = Adam(emb, lr=0.1)
        ids = torch.arange(5000)
        emb({"t": ids, "u": ids}).flat.sum().backward()
        rows.step()

    assert growth(turn, warm=5, turns=30) < 32 * MB  # of 15 MB each


def test_lengths_that_never_return_do_not_pile_up():
    """Batches padded to their longest row come in ever new shapes."""
    emb = EmbeddingCollection([Table("t", 2, rows=5, features=["a", "b"])])
    for number in range(2 * MOST_PLANS):
        emb({"a": torch.zeros(1, number, dtype=torch.int64), "b": torch.zeros(1, 3, dtype=torch.int64)})
    assert len(emb._lookup._plans) <= MOST_PLANS


# -- who holds what --------------------------------------------------------------------------------------------


def addresses(emb: EmbeddingCollection, turns: int) -> int:
    """How many blocks of memory so many lookups have used, each when the one before was gone."""
    return len({emb({"t": torch.arange(1000)}).flat.data_ptr() for _ in range(turns)})


@pytest.fixture
def emb() -> EmbeddingCollection:
    gc.collect()
    gc.disable()  # a cycle would stay
    yield EmbeddingCollection([Table("t", 32, rows=1000)])
    gc.enable()


def test_the_memory_of_an_output_is_used_again_as_soon_as_it_is_let_go(emb):
    assert addresses(emb, 20) == 1
    kept = emb({"t": torch.arange(1000)}).flat
    assert addresses(emb, 20) == 1
    assert kept.data_ptr() != emb({"t": torch.arange(1000)}).flat.data_ptr()


def test_a_piece_keeps_the_memory_of_its_output(emb):
    piece = emb({"t": torch.arange(1000)})["t"][3:5]
    before = piece.detach().clone()
    for _ in range(5):
        emb({"t": torch.full((1000,), 7)})
    assert torch.equal(piece, before)


def test_training_keeps_no_output_alive(emb):
    rows, used = SGD(emb, lr=0.1), set()
    for _ in range(20):
        out = emb({"t": torch.arange(1000)}).flat
        used.add(out.data_ptr())
        (out * 2).sum().backward()
        rows.step()
        del out
    assert len(used) == 1


def test_gradients_are_let_go_by_the_step_and_by_zero_grad(emb):
    rows = SGD(emb, lr=0.1)
    for end in (rows.step, rows.zero_grad):
        grad = torch.ones(1000, 32)
        gone = weakref.ref(grad)
        emb({"t": torch.arange(1000)}).flat.backward(grad)
        del grad
        assert gone() is not None
        assert emb.group.pending("t") == 1
        end()
        assert gone() is None
        assert emb.group.pending("t") == 0


def test_weights_of_ids_that_learn_keep_no_output_alive(emb):
    rows, used = SGD(emb, lr=0.1), set()
    for _ in range(20):
        weights = torch.ones(1000, requires_grad=True)
        out = emb(IdBlock.from_ragged({"t": torch.arange(1000)}, {"t": weights})).flat
        used.add(out.data_ptr())
        out.sum().backward()
        rows.step()
        del out
    assert len(used) == 1


def test_a_graph_that_is_thrown_away_lets_go_of_everything(emb):
    rows = SGD(emb, lr=0.1)
    for weighted in (False, True):
        weights = torch.ones(1000, requires_grad=True)
        given = {"t": weights} if weighted else None
        out = emb(IdBlock.from_ragged({"t": torch.arange(1000)}, given)).flat
        first = out.data_ptr()
        loss = out.square().sum()
        del out, loss
        assert emb({"t": torch.arange(1000)}).flat.data_ptr() == first
    rows.zero_grad()


@pytest.mark.usefixtures("emb")  # which turns the garbage collector off
@pytest.mark.parametrize("size", [{"rows": 100}, {"capacity": 100}])
def test_a_collection_and_its_optimizer_go_without_the_garbage_collector(size):
    made = EmbeddingCollection([Table("t", 2, **size)])
    rows = SGD(made, lr=0.1)
    made({"t": torch.arange(50)}).flat.sum().backward()
    rows.step()
    left = [weakref.ref(part) for part in (made, made.group, made._lookup, made["t"], rows)]
    del made, rows
    assert [ref() for ref in left] == [None] * 5
