"""Collections inside compiled and exported models."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.export import Dim, export

from hybridrec.embedding import Constant, EmbeddingCollection, MultiHash, Table, Uniform
from hybridrec.ops.pooled_lookup.op import EVAL, SEPARATOR, TRAIN
from hybridrec.optim import SGD, Adagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, random_block

SIZES = {"item": 9, "history": 9, "words": 7, "best": 7, "user": 30, "query": 100}
SHAPES = [(6, 1), (5, 2), (7, 3), (2, 4), (12, 5), (6, 6), (9, 7), (3, 8), (11, 9), (8, 10)]  # rows, seed


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Nothing compiled is left from other tests, or for them."""
    torch._dynamo.reset()
    with fresh_cache():
        yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Every kind of table and combiner below a small network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        combiner = {"words": "none", "best": "max"}
        self.emb = EmbeddingCollection(
            [
                Table("item", 5, rows=9, features=["item", "history"], combiner="mean", init=Uniform(1.0)),
                Table("word", 3, rows=7, features=list(combiner), combiner=combiner, init=Uniform(1.0)),
                Table("user", 4, capacity=20, init=Uniform(1.0)),
                Table("query", 2, hashes=MultiHash(2, 10), combiner="sqrtn", init=Uniform(1.0)),
            ]
        )
        self.layers = nn.Sequential(nn.Linear(19, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: IdBlock) -> Tensor:
        out = self.emb(ids)
        return self.layers(out.flat).sum() + out["words"].flat.square().sum() + out["user"].sum()


def blocks() -> Iterator[IdBlock]:
    for rows, seed in SHAPES:
        block = random_block(SIZES, rows, seed)
        user = torch.randint(0, 30, (rows, 2), generator=torch.Generator().manual_seed(seed))
        yield IdBlock.from_ragged({**{name: block[name] for name in block.names}, "user": user})


def train(model: Model, run: Any) -> dict[str, Tensor]:
    rows, dense = Adagrad(model, lr=0.1, eps=0.01), torch.optim.SGD(model.parameters(), lr=0.1)
    for block in blocks():
        dense.zero_grad()
        run(block).backward()
        dense.step()
        rows.step()
    return model.state_dict()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code, in the inductor
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_trains_like_an_eager_one_over_changing_shapes(backend):
    eager = Model()
    compiled = copy.deepcopy(eager)
    expected = train(eager, eager)
    found = train(compiled, torch.compile(compiled, backend=backend, fullgraph=True))
    for name, part in expected.items():
        torch.testing.assert_close(
            found[name], part, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code, in the inductor
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_two_lookups_in_one_graph_count_twice(backend):
    """Equal calls with equal gradients look like one to a compiler."""
    emb = EmbeddingCollection([Table("t", 2, rows=5, init=Constant(1.0))])
    rows = SGD(emb, lr=1.0)

    def run(ids: IdBlock) -> Tensor:
        return emb(ids).flat.sum() + emb(ids).flat.sum()

    torch.compile(run, backend=backend, fullgraph=True)(IdBlock.from_lists({"t": [0, 1]})).backward()
    rows.step()
    assert emb["t"].weight[:, 0].tolist() == [-1, -1, 1, 1, 1]


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_of_ids_take_gradients_in_a_compiled_model(combiner):
    emb = EmbeddingCollection([Table("t", 3, rows=9, combiner=combiner, init=Uniform(1.0))])
    rows = SGD(emb, lr=1.0)
    ids = random_block({"t": 9}, 8, 1)["t"]

    def run(of_ids: Tensor) -> Tensor:
        out = emb(IdBlock.from_ragged({"t": ids}, {"t": of_ids * 2}))["t"]
        return (out.flat if isinstance(out, Ragged) else out).square().sum()

    results = []
    for one in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        given = torch.linspace(-1, 2, len(ids.flat)).requires_grad_()
        one(given).backward()
        results.append((given.grad, rows.grad_norm()))
        rows.zero_grad()
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1])


def test_a_sequence_that_no_loss_reads_touches_no_row_in_a_compiled_model():
    tables = [Table("a", 2, rows=5), Table("b", 2, rows=5, combiner="none")]
    emb = EmbeddingCollection(tables)
    rows, before = SGD(emb, lr=1.0, weight_decay=0.5), emb["b"].weight.clone()
    run = torch.compile(lambda ids: emb(ids).flat.sum(), backend="aot_eager", fullgraph=True)
    run(IdBlock.from_lists({"a": [0, 1], "b": [0, 1]})).backward()
    rows.step()
    assert torch.equal(emb["b"].weight, before)


def test_gradients_of_a_compiled_model_wait_for_the_step_in_memory_of_their_own():
    """Several backward calls before the step, by code that uses its memory again and again."""
    results = []
    for compiled in (False, True):
        emb = EmbeddingCollection([Table("t", 4, rows=50, init=Uniform(1.0))])
        rows = SGD(emb, lr=1.0)

        def run(ids: IdBlock, factor: Tensor, emb: EmbeddingCollection = emb) -> Tensor:
            return (emb(ids).flat * factor).relu().square().sum()

        call = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        for seed in range(6):
            call(random_block({"t": 50}, 16, seed), torch.full((), 1.0 + seed)).backward()
        rows.step()
        results.append(emb["t"].weight.clone())
    torch.testing.assert_close(*results)


def test_modes_of_a_compiled_model_are_those_of_an_eager_one():
    emb = EmbeddingCollection([Table("t", 2, capacity=9, init=Constant(1.0))])
    run = torch.compile(emb, backend="aot_eager", fullgraph=True)
    ids = IdBlock.from_lists({"t": [5, 6]})
    emb.eval()
    assert not run(ids).flat.any()
    emb.train()
    with torch.no_grad():
        assert run(ids).flat.all()
    assert emb["t"].ids().tolist() == [5, 6]
    assert run(ids).flat.requires_grad


def test_bad_ids_are_refused_by_a_compiled_model_as_by_an_eager_one():
    emb = EmbeddingCollection([Table("t", 2, rows=3)])
    run = torch.compile(emb, backend="aot_eager", fullgraph=True)
    run(IdBlock.from_lists({"t": [1, 2]}))
    with pytest.raises(ValueError, match="id 7 at position 1 of feature 't' is outside table 't', 0 … 2"):
        run(IdBlock.from_lists({"t": [1, 7]}))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch, about the loss
def test_a_training_step_may_be_compiled_as_a_whole():
    """The graph ends where the optimizers step, and goes on after them."""
    results = []
    for compiled in (False, True):
        emb = EmbeddingCollection([Table("t", 2, rows=5), Table("u", 2, capacity=9)])
        rows = Adagrad(emb, lr=0.1)

        def step(ids: IdBlock, emb: EmbeddingCollection = emb, rows: Adagrad = rows) -> Tensor:
            rows.zero_grad()
            loss = emb(ids).flat.square().sum()
            loss.backward()
            rows.step()
            return loss.detach()

        run = torch.compile(step, backend="aot_eager") if compiled else step
        losses = [float(run(IdBlock.from_lists({"t": [0, 1, 0], "u": [1, 2, 3 + turn]}))) for turn in range(4)]
        results.append((losses, emb["t"].weight.tolist(), emb["u"].export().rows.tolist(), rows.steps_of("t")))
    assert results[0] == results[1]


# -- export ------------------------------------------------------------------------------------------------------


class Exported(nn.Module):
    """What a server calls: plain tensors in, a score out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [
            Table("item", 5, rows=9, features=["item", "history"], combiner="mean"),
            Table("user", 4, capacity=20),
        ]
        self.emb = EmbeddingCollection(tables)
        self.layer = nn.Linear(14, 1)

    def forward(self, item: Tensor, user: Tensor, history: Tensor, offsets: Tensor) -> Tensor:
        features = {"item": item, "user": user, "history": Ragged.trusted(history, offsets)}
        return self.layer(self.emb(IdBlock.from_ragged(features)).flat)


def inputs(batch: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    history = random_block({"t": 9}, batch, seed)["t"]
    item = torch.randint(0, 9, (batch, 2), generator=generator)
    user = torch.randint(0, 30, (batch,), generator=generator)
    return item, user, history.flat, history.offsets


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_gives_what_the_model_gives(strict):
    model = Exported()
    rows = SGD(model, lr=0.1)
    model(*inputs(20, 0)).sum().backward()
    rows.step()
    model.eval()
    batch, ids = Dim("batch", min=2, max=1000), Dim("ids", min=2, max=100_000)
    shapes = ({0: batch}, {0: batch}, {0: ids}, {0: batch + 1})
    with torch.no_grad():
        run = export(model, inputs(6, 1), dynamic_shapes=shapes, strict=strict).module()
    size = len(model.emb["user"])
    for number in (6, 3, 17):
        torch.testing.assert_close(run(*inputs(number, number)), model(*inputs(number, number)))
    assert len(model.emb["user"]) == size


def test_an_exported_model_says_so_when_its_tables_are_gone():
    model = Exported().eval()
    with torch.no_grad():
        run = export(model, inputs(6, 1)).module()
    run(*inputs(6, 1))
    del model
    gc.collect()
    with pytest.raises(RuntimeError, match="the tables of this lookup are gone"):
        run(*inputs(6, 1))


# -- operators ---------------------------------------------------------------------------------------------------


def operator_inputs(emb: EmbeddingCollection, mode: int, weighted: bool) -> tuple[Any, ...]:
    block = random_block(dict.fromkeys(COMBINERS, 9), 5, 1)
    weights = torch.linspace(-1, 2, len(block.values)).requires_grad_() if weighted else None
    hotness = [-1 if hot is None else hot for hot in block.hotness]
    lookup = emb._lookup
    layout = (list(block.starts), hotness, SEPARATOR.join(block.names), block.batch_size)
    return block.values, block.offsets, weights, lookup.anchor, *layout, lookup.number, mode, weighted


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", [EVAL, TRAIN])
@pytest.mark.parametrize("size", [{"rows": 9}, {"capacity": 9}])
def test_the_operator_keeps_the_rules_of_torch(weighted, mode, size):
    names = {combiner: combiner for combiner in COMBINERS}
    emb = EmbeddingCollection([Table("t", 3, features=list(names), combiner=names, **size)])
    rows = SGD(emb, lr=1.0)
    emb(random_block(dict.fromkeys(COMBINERS, 9), 5, 1))
    torch.library.opcheck(torch.ops.hybridrec.pooled_lookup.default, operator_inputs(emb, mode, weighted))
    rows.zero_grad()


@pytest.mark.parametrize("size", [{"rows": 9}, {"capacity": 9}])
@pytest.mark.parametrize("mode", [EVAL, TRAIN])
def test_the_operators_of_the_backward_keep_the_rules_of_torch(size, mode):
    names = {combiner: combiner for combiner in COMBINERS}
    emb = EmbeddingCollection([Table("t", 3, features=list(names), combiner=names, **size)])
    rows = SGD(emb, lr=1.0)
    values, offsets, weights, anchor, *layout, _, _ = operator_inputs(emb, mode, True)
    look_up = torch.ops.hybridrec.pooled_lookup
    with torch.no_grad():
        flat, sequence, *state = look_up(values, offsets, weights, anchor, *layout, mode, True)
    grads, given = [torch.ones_like(flat), torch.ones_like(sequence)], weights.detach()
    checks = ("test_schema", "test_faketensor")
    common = (values, offsets, given, state, *layout)
    weigh = torch.ops.hybridrec.weight_gradient.default
    torch.library.opcheck(weigh, (grads, flat, *common, mode), test_utils=checks)
    torch.library.opcheck(torch.ops.hybridrec.queue_gradients.default, (grads, *common, True, 0), test_utils=checks)
    rows.zero_grad()
