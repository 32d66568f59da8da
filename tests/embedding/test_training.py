"""Whole training steps of a collection and its row optimizers, beside the references and beside torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hybridrec.embedding import Constant, EmbeddingCollection, MultiHash, Normal, Table, Uniform
from hybridrec.optim import FTRL, SGD, Adagrad, Adam, RowWiseAdagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, DIMS, USES, blocks, factors, loss_of, random_block, table_lists
from tests.embedding.oracle import PlainCollection

# Numbers that keep updates smooth: a gradient that cancels out to nearly nothing moves a row by nearly nothing.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.5}),
    "momentum": (SGD, {"lr": 0.5, "momentum": 0.75}),
    "nesterov": (SGD, {"lr": 0.5, "momentum": 0.75, "nesterov": True}),
    "adagrad": (Adagrad, {"lr": 0.5, "lr_decay": 0.5, "eps": 0.05}),
    "rowwise_adagrad": (RowWiseAdagrad, {"lr": 0.5, "initial_accumulator_value": 0.5, "eps": 0.05}),
    "adam": (Adam, {"lr": 0.5, "betas": (0.75, 0.9), "eps": 0.05}),
    "ftrl": (FTRL, {"lr": 0.5, "l1": 0.125, "l2": 0.25, "beta": 0.5}),
}
OPTIONS = st.fixed_dictionaries(
    {
        "weight_decay": st.sampled_from([0.0, 0.25]),
        "weight_bound": st.sampled_from([None, 0.5]),
        "clip_row_norm": st.sampled_from([None, 0.75]),
    }
)


def optimizer(kind: str, emb: EmbeddingCollection, **options: Any) -> Any:
    make, own = KINDS[kind]
    return make(emb, **(own | options))


# -- beside the references -------------------------------------------------------------------------------------


@settings(max_examples=max(100, settings().max_examples))
@given(data=st.data())
def test_steps_are_those_of_the_references_for_any_batch(data):
    tables = data.draw(table_lists())
    emb = EmbeddingCollection(tables)
    rows = optimizer(data.draw(st.sampled_from(list(KINDS))), emb, **data.draw(OPTIONS))
    plain = PlainCollection(emb)
    for turn in range(data.draw(st.integers(1, 2))):
        for call in range(data.draw(st.integers(1, 2))):
            block, use = data.draw(blocks(tables)), data.draw(st.sampled_from(USES))
            outs = emb(block), plain(block)
            assert_same(*outs)
            for out in outs:
                loss_of(out, seed=10 * turn + call, use=use).backward()
        plain.step(rows)
        rows.step()
        plain.assert_equal()
        plain.adopt()


def assert_same(out: Any, expected: Any) -> None:
    assert out.flat.dtype == torch.float32
    torch.testing.assert_close(out.flat.double(), expected.flat, rtol=1e-5, atol=2e-6)
    for name, sequence in expected.sequences.items():
        assert torch.equal(out[name].offsets, sequence.offsets)
        torch.testing.assert_close(out[name].flat.double(), sequence.flat, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", DIMS)
def test_rows_of_any_width_are_looked_up_and_updated(dim, kind):
    names = {combiner: combiner for combiner in COMBINERS if combiner != "max"}
    mixed = Table("t", dim, rows=30, features=list(names), combiner=names, init=Uniform(1.0))
    emb = EmbeddingCollection([mixed, Table("max", dim, rows=30, combiner="max", init=Uniform(1.0))])
    rows, plain = optimizer(kind, emb, weight_decay=0.25, clip_row_norm=2.0), PlainCollection(emb)
    for seed in range(2):
        block = random_block(dict.fromkeys(COMBINERS, 30), 20, seed)
        for out in (emb(block), plain(block)):
            loss_of(out, seed, "cat").backward()
        plain.step(rows)
        rows.step()
        plain.assert_equal(atol=5e-6)
        plain.adopt()


@given(data=st.data())
def test_weights_of_ids_take_the_gradient_of_the_reference(data):
    tables = data.draw(table_lists(dims=(1, 3, 17)))
    emb = EmbeddingCollection([replace(table, trainable=data.draw(st.booleans())) for table in tables])
    rows = SGD(emb, lr=0.5) if any(table.trainable for table in emb.tables.values()) else None
    block, use = data.draw(blocks(tables, weighted=True)), data.draw(st.sampled_from(USES))
    grads = []
    for look_up in (emb, PlainCollection(emb)):
        weights = block.weights.clone().requires_grad_()
        out = look_up(replace(block, weights=weights))
        loss = loss_of(out, 3, use)
        if loss.requires_grad:
            loss.backward()
        grads.append(torch.zeros_like(weights) if weights.grad is None else weights.grad)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
    if rows is not None:
        rows.zero_grad()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_hash_rows_train_like_the_reference(combiner, weighted):
    table = Table("query", 5, hashes=MultiHash(3, 4), combiner=combiner, init=Uniform(1.0))
    emb = EmbeddingCollection([table])
    rows, plain = SGD(emb, lr=0.5, momentum=0.5), PlainCollection(emb)
    ids = Ragged.from_lists([[2**62, -1], [], [5, 5, 7]])
    grads = []
    for look_up in (emb, plain):
        weights = torch.tensor([0.5, 2.0, -1.0, 3.0, 0.25], requires_grad=True)
        block = IdBlock.from_ragged({"query": ids}, {"query": weights} if weighted else None)
        loss_of(look_up(block), 1).backward()
        grads.append(weights.grad)
    plain.step(rows)
    rows.step()
    plain.assert_equal()
    if weighted:
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("other", ["sum", "mean", "none", "max"])
def test_a_row_shared_by_max_and_other_features_takes_only_the_columns_it_won(order, other):
    combiner = {"a": other, "b": "max"}
    table = Table("t", 2, rows=3, features=order, combiner={name: combiner[name] for name in order})
    emb = EmbeddingCollection([table])
    emb["t"].weight.copy_(torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 1.0]]))
    rows, before = SGD(emb, lr=1.0), emb["t"].weight.clone()
    out = emb({"a": torch.tensor([0]), "b": torch.tensor([[0, 1]])})
    (out.flat.sum() + sum(part.flat.sum() for part in out.sequences.values())).backward()
    rows.step()
    assert (before - emb["t"].weight).tolist() == [[2, 1], [0, 1], [0, 0]]


def test_a_gradient_of_exact_numbers_is_exact_whatever_the_bags():
    """Sums of eighths are exact in any order, so an SGD step with lr 1 can be compared bit for bit."""
    tables = [Table("t", 19, rows=13, features=["a", "b"], combiner={"a": "sum", "b": "none"}, init=Constant(1.0))]
    emb = EmbeddingCollection(tables)
    rows, plain = SGD(emb, lr=1.0), PlainCollection(emb)
    for seed in range(3):  # three backward calls, one step
        block = random_block({"a": 13, "b": 13}, 50, seed, longest=9)
        for out in (emb(block), plain(block)):
            loss_of(out, seed).backward()
    plain.step(rows)
    rows.step()
    assert torch.equal(emb["t"].weight.double(), plain.weights["t"])


def test_adam_averages_as_exactly_as_floats_can():
    """1 - beta2 has to be taken before it is rounded: 0.99999 as a float is 0.1 % off there."""
    emb = EmbeddingCollection([Table("t", 3, rows=4)])
    rows = Adam(emb, lr=0.5, betas=(0.999, 0.99999))
    emb({"t": torch.tensor([0, 1, 1])}).flat.sum().backward()
    rows.step()
    expected = torch.tensor([1.0, 2.0, 0.0, 0.0])[:, None].expand(4, 3)
    torch.testing.assert_close(emb["t"].state("exp_avg"), expected * 1e-3, rtol=1e-6, atol=0)
    torch.testing.assert_close(emb["t"].state("exp_avg_sq"), expected**2 * 1e-5, rtol=1e-6, atol=0)


def test_ftrl_sets_a_row_without_any_gradient_to_zero_whatever_its_accumulator():
    emb = EmbeddingCollection([Table("t", 3, rows=4, init=Constant(1.0))])
    rows = FTRL(emb, lr=0.5, initial_accumulator_value=0.0)
    (emb({"t": torch.tensor([0, 1])}).flat * torch.tensor([[0.0], [1.0]])).sum().backward()
    rows.step()
    assert emb["t"].weight[:, 0].tolist() == [0.0, 0.5, 1.0, 1.0]


def test_a_row_that_is_nan_stays_so():
    emb = EmbeddingCollection([Table("t", 17, rows=3, init=Constant(1.0))])
    emb["t"].weight[0].fill_(torch.nan)
    rows = SGD(emb, lr=0.5, weight_bound=10.0)
    emb({"t": torch.tensor([0, 1])}).flat[1:].sum().backward()
    rows.step()
    assert emb["t"].weight[0].isnan().all()
    assert emb["t"].weight[1:, 0].tolist() == [0.5, 1.0]


def test_many_tables_of_many_widths_train_together():
    dims = [8] * 8 + [1, 2, 3, 5, 16, 16, 32, 64, 100, 128, 1024, 2048] + [4, 7] * 10
    tables = [
        Table(f"t{number}", dim, rows=1 + number, combiner=COMBINERS[number % 5], init=Uniform(1.0))
        for number, dim in enumerate(dims)
    ]
    emb = EmbeddingCollection(tables)
    rows, plain = Adagrad(emb, lr=0.1, eps=0.05), PlainCollection(emb)
    for seed in range(2):
        block = random_block({table.name: table.fixed_rows for table in tables}, 30, seed)
        for out in (emb(block), plain(block)):
            loss_of(out, seed).backward()
        plain.step(rows)
        rows.step()
        plain.assert_equal()
        plain.adopt()


def test_outputs_hold_nothing_of_what_their_memory_held_before():
    names = {combiner: combiner for combiner in COMBINERS}
    emb = EmbeddingCollection([Table("t", 19, rows=9, features=list(names), combiner=names, out_of_range="zero")])
    plain = PlainCollection(emb)
    good = emb["t"].weight.clone()
    for seed in range(5):
        emb["t"].weight.fill_(torch.nan)
        emb(random_block(dict.fromkeys(names, 9), 30, seed))  # whose memory the next lookup takes
        emb["t"].weight.copy_(good)
        block = random_block(dict.fromkeys(names, 12), 30 - seed, seed + 10)
        assert_same(emb(block), plain(block))


# -- beside torch ----------------------------------------------------------------------------------------------


def both_weights(combiner: str, ours: Any, theirs: Any, every_row: bool = False, sparse: bool = True) -> list[Tensor]:
    """Our rows and those of nn.EmbeddingBag after a few steps on the same batches."""
    emb = EmbeddingCollection([Table("t", 6, rows=11, combiner=combiner, init=Normal(0.5))])
    bag = nn.EmbeddingBag.from_pretrained(emb["t"].weight.clone(), freeze=False, mode=combiner, sparse=sparse)
    rows, dense = ours(emb), theirs(bag.parameters())
    with torch.sparse.check_sparse_tensor_invariants():
        for seed in range(6):
            block = random_block({"t": 11}, 9, seed, longest=5)
            if every_row:
                block = IdBlock.from_ragged({"t": torch.stack([torch.arange(11), torch.randint(0, 11, (11,))], 1)})
            ids, grad = block["t"], torch.randn(block.batch_size, 6, generator=torch.Generator().manual_seed(seed))
            dense.zero_grad()
            (bag(ids.flat, ids.offsets[:-1]) * grad).sum().backward()
            (emb(block).flat * grad).sum().backward()
            dense.step()
            rows.step()
    return [emb["t"].weight, bag.weight.detach()]


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_sgd_is_that_of_torch_on_sparse_gradients(combiner):
    pair = both_weights(combiner, lambda m: SGD(m, lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3))
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_adagrad_is_that_of_torch_on_sparse_gradients(combiner):
    options = {"lr": 0.3, "lr_decay": 0.1, "initial_accumulator_value": 0.1}
    pair = both_weights(combiner, lambda m: Adagrad(m, **options), lambda p: torch.optim.Adagrad(p, **options))
    torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_adam_is_the_sparse_adam_of_torch(combiner):
    options = {"lr": 0.1, "betas": (0.8, 0.95)}
    pair = both_weights(combiner, lambda m: Adam(m, **options), lambda p: torch.optim.SparseAdam(list(p), **options))
    torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_decay_are_those_of_torch_where_every_row_is_touched(combiner, nesterov):
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.05}
    ours, theirs = (lambda m: SGD(m, **options)), (lambda p: torch.optim.SGD(p, **options))
    torch.testing.assert_close(*both_weights(combiner, ours, theirs, every_row=True, sparse=False))


# -- cases of the peers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "combiner", "ids", "expected"),
    [
        ([[1, 2], [3, 4], [5, 6]], "sum", torch.tensor([0, 1, 0]), [[1, 2], [3, 4], [1, 2]]),
        ([[1, 2], [3, 4], [5, 6]], "sum", torch.tensor([[0, 1], [2, 0]]), [[4, 6], [6, 8]]),
        ([[1, 2], [3, 4], [5, 6]], "mean", torch.tensor([[0, 1], [2, 0], [1, 2]]), [[2, 3], [3, 4], [4, 5]]),
        ([[0, 3], [1, 5], [7, 2]], "mean", Ragged.from_lists([[1, 2, 2], [0], [1, 2]]), [[5, 3], [0, 3], [4, 3.5]]),
        ([[0, 3], [1, 5], [7, 2]], "mean", Ragged.from_lists([[1, 2], [], [0]]), [[4, 3.5], [0, 0], [0, 3]]),
    ],
)
def test_pooling_gives_the_known_results(weights, combiner, ids, expected):
    """The last has as many ids as rows, which is no reason to take it for one id per row."""
    emb = EmbeddingCollection([Table("t", 2, rows=3, combiner=combiner)])
    emb["t"].weight.copy_(torch.tensor(weights))
    assert emb({"t": ids}).flat.tolist() == expected


def test_one_bag_of_many_ids_steps_like_many_bags_of_one():
    results = []
    for ids in (torch.tensor([[0, 1, 0]]), torch.tensor([0, 1, 0])):
        emb = EmbeddingCollection([Table("t", 2, rows=3)])
        emb["t"].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        rows = Adagrad(emb, lr=0.1)
        emb({"t": ids}).flat.sum().backward()
        rows.step()
        results.append(emb["t"].weight.clone())
    assert torch.equal(*results)


def test_a_duplicate_in_a_bag_counts_twice_and_an_empty_bag_moves_nothing():
    emb = EmbeddingCollection([Table("t", 3, rows=4, combiner="mean", init=Constant(1.0))])
    rows = SGD(emb, lr=1.0)
    out = emb({"t": Ragged.from_lists([[2, 2], [], [1, 2]])})
    out.flat.backward(torch.ones(3, 3))
    rows.step()
    assert out.flat[:, 0].tolist() == [1, 0, 1]
    assert emb["t"].weight[:, 0].tolist() == [1, 0.5, -0.5, 1]


def test_rows_that_took_no_gradient_do_not_change():
    emb = EmbeddingCollection([Table("t", 3, rows=50)])
    rows = Adam(emb, lr=0.5, weight_decay=0.5)
    for seed in range(3):
        before = emb["t"].weight.clone()
        ids = random_block({"t": 50}, 4, seed)
        (emb(ids).flat * factors((4, 3), seed)).sum().backward()
        rows.step()
        same = (emb["t"].weight == before).all(1)
        assert same.nonzero().flatten().tolist() == sorted(set(range(50)) - set(ids.values.tolist()))
