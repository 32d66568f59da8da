"""Gradients of embeddings through the graphs that people build: parts of an output, twice, never, later, in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hybridrec.embedding import Constant, EmbeddingCollection, Table, Uniform
from hybridrec.optim import SGD, Adagrad
from hybridrec.types import IdBlock, Ragged
from tests.embedding.batches import COMBINERS, factors, random_block

SIZES = {"item": 9, "history": 9, "words": 7, "user": 5}


def collection(**options: Any) -> EmbeddingCollection:
    return EmbeddingCollection(
        [
            Table("item", 3, rows=9, features=["item", "history"], combiner="mean", init=Uniform(1.0), **options),
            Table("words", 2, rows=7, combiner="none", init=Uniform(1.0), **options),
            Table("user", 4, rows=5, init=Uniform(1.0), **options),
        ]
    )


def weights(emb: EmbeddingCollection) -> list[Tensor]:
    return [emb[name].weight.clone() for name in emb.tables]


def trained(loss: Callable[[EmbeddingCollection, IdBlock], Tensor | None], **options: Any) -> list[Tensor]:
    """The rows after a step on the loss, which may also call backward by itself."""
    emb = collection()
    rows = SGD(emb, lr=1.0, **options)
    made = loss(emb, random_block(SIZES, 6, seed=1))
    if made is not None:
        made.backward()
    rows.step()
    return weights(emb)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for pair in zip(found, expected, strict=True):
        torch.testing.assert_close(*pair)


# -- outputs used in part, twice, or not at all ------------------------------------------------------------------


def test_an_output_that_is_used_twice_takes_both_gradients():
    def twice(emb, ids):
        out = emb(ids)
        return out.flat.sum() + (2 * out.flat).sum() + out["user"].sum() + out["words"].flat.sum() * 2

    def once(emb, ids):
        out = emb(ids)
        return (3 * out.flat).sum() + out["user"].sum() + 2 * out["words"].flat.sum()

    assert_same(trained(twice), trained(once))


def test_backward_twice_through_one_graph_counts_twice():
    def twice(emb, ids):
        loss = emb(ids).flat.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert_same(trained(twice), trained(lambda emb, ids: 2 * emb(ids).flat.square().sum()))


def test_a_graph_without_retain_is_gone_after_its_backward():
    emb = collection()
    rows = SGD(emb)
    loss = emb(random_block(SIZES, 6, 1)).flat.sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert emb.group.pending("item") == 1
    rows.zero_grad()


def test_two_lookups_of_one_batch_add_up():
    assert_same(
        trained(lambda emb, ids: emb(ids).flat.sum() + emb(ids).flat.sum()),
        trained(lambda emb, ids: 2 * emb(ids).flat.sum()),
    )


def test_a_sequence_that_no_loss_reads_touches_no_row():
    """Weight decay tells: it acts on the rows that are touched."""
    before = weights(collection())
    item, words, user = trained(lambda emb, ids: emb(ids).flat.sum(), weight_decay=0.5)
    assert torch.equal(words, before[1])
    assert not torch.equal(item, before[0])
    item, words, user = trained(lambda emb, ids: emb(ids)["words"].flat.sum(), weight_decay=0.5)
    assert torch.equal(item, before[0])
    assert torch.equal(user, before[2])
    assert not torch.equal(words, before[1])


def test_a_feature_that_is_detached_takes_no_gradient():
    def detached(emb, ids):
        out = emb(ids)
        return out["item"].sum() + out["history"].detach().sum() + out["user"].sum() * 0

    def alone(emb, ids):
        return (emb(ids).flat * torch.tensor([1.0] * 3 + [0.0] * 7)).sum()

    assert_same(trained(detached), trained(alone))


def test_a_loss_without_embeddings_queues_nothing():
    emb = collection()
    rows = SGD(emb)
    emb(random_block(SIZES, 6, 1))
    torch.ones(1, requires_grad=True).sum().backward()
    rows.step()
    assert rows.steps_of("item") == 0


# -- gradients that are asked for, not left in leaves ----------------------------------------------------------


def weighted_block(given: Tensor) -> IdBlock:
    ids = Ragged.from_lists([[0, 1], [2], [], [3, 3, 4]])
    return IdBlock.from_ragged({"t": ids}, {"t": given})


@pytest.mark.parametrize("combiner", COMBINERS)
def test_asking_for_single_gradients_queues_none_for_rows(combiner):
    emb = EmbeddingCollection([Table("t", 3, rows=5, combiner=combiner)])
    rows = SGD(emb, lr=1.0)
    of_ids, layer = torch.linspace(-1, 2, 6).requires_grad_(), nn.Linear(3, 1)

    def loss() -> Tensor:
        out = emb(weighted_block(of_ids * 1))["t"]
        return layer(out.flat if isinstance(out, Ragged) else out).square().sum()

    asked = torch.autograd.grad(loss(), [of_ids, layer.weight])
    loss().backward(inputs=[of_ids, layer.weight])
    assert emb.group.pending("t") == 0
    loss().backward()
    assert emb.group.pending("t") == 1
    torch.testing.assert_close(of_ids.grad, 2 * asked[0])
    torch.testing.assert_close(layer.weight.grad, 2 * asked[1])
    rows.zero_grad()


def test_the_gradient_of_an_output_can_be_asked_for():
    emb = collection()
    SGD(emb)
    out = emb(random_block(SIZES, 6, 1))
    grad = torch.autograd.grad(out.flat.square().sum(), [out.flat])[0]
    torch.testing.assert_close(grad, 2 * out.flat.detach())
    assert emb.group.pending("item") == 0


def test_a_second_derivative_is_refused_and_not_left_out():
    emb = EmbeddingCollection([Table("t", 3, rows=5)])
    SGD(emb)
    of_ids = torch.ones(6, requires_grad=True)
    loss = emb(weighted_block(of_ids)).flat.square().sum()
    (grad,) = torch.autograd.grad(loss, [of_ids], create_graph=True)
    with pytest.raises(RuntimeError, match=r"twice|no autograd formula"):
        grad.sum().backward()


# -- gradients that others can reach -----------------------------------------------------------------------------


def test_hooks_may_change_the_gradient():
    def hooked(emb, ids):
        out = emb(ids)
        out.flat.register_hook(lambda grad: grad * 3)
        return out.flat.sum()

    assert_same(trained(hooked), trained(lambda emb, ids: 3 * emb(ids).flat.sum()))


def test_a_gradient_handed_over_and_then_changed_is_refused():
    emb = collection()
    rows = SGD(emb, lr=1.0)
    out, before = emb(random_block(SIZES, 6, 1)), weights(emb)
    buffer = torch.ones_like(out.flat)
    out.flat.backward(buffer)
    buffer.zero_()
    with pytest.raises(
        RuntimeError, match=r"changed in place after backward\(\) and before step\(\); hand over a clone"
    ):
        rows.step()
    assert_same(weights(emb), before)
    rows.zero_grad()
    rows.step()


def test_weights_of_ids_may_take_their_own_step_first():
    """The gradient of a row has the weights of the forward call, not those that an optimizer has made of them since."""
    results = []
    for order in (0, 1):
        emb = EmbeddingCollection([Table("t", 3, rows=5, init=Constant(1.0))])
        of_ids = nn.Parameter(torch.linspace(-1, 2, 6))
        steps = [SGD(emb, lr=1.0), torch.optim.SGD([of_ids], lr=1.0)]
        emb(weighted_block(of_ids)).flat.sum().backward()
        for one in steps if order else reversed(steps):
            one.step()
        results.append(emb["t"].weight.clone())
    assert torch.equal(*results)


def test_weights_with_gaps_in_memory_are_read_as_they_are():
    emb = EmbeddingCollection([Table("t", 1, rows=5, init=Constant(1.0))])
    rows = SGD(emb, lr=1.0)
    wide = torch.arange(12.0).view(6, 2).requires_grad_()
    block = weighted_block(torch.zeros(6))
    made = IdBlock(block.names, block.values, block.starts, block.hotness, block.offsets, wide[:, 1], batch_size=4)
    out = emb(made)
    assert out.flat[:, 0].tolist() == [1 + 3, 5, 0, 7 + 9 + 11]
    out.flat.sum().backward()
    rows.step()
    assert wide.grad.tolist() == [[0, 1]] * 6
    assert emb["t"].weight[:, 0].tolist() == [0, -2, -4, -15, -10]


def test_an_output_changed_in_place_passes_its_gradient_on():
    def changed(emb, ids):
        out = emb(ids).flat
        out.mul_(2)
        return out.square().sum()

    assert_same(trained(changed), trained(lambda emb, ids: (2 * emb(ids).flat).square().sum()))


def test_an_output_that_a_gradient_needs_cannot_be_changed_in_place():
    emb = EmbeddingCollection([Table("t", 3, rows=5, combiner="mean")])
    SGD(emb)
    out = emb(weighted_block(torch.linspace(1, 2, 6).requires_grad_())).flat
    out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# -- modes -----------------------------------------------------------------------------------------------------


def test_a_lookup_in_evaluation_between_forward_and_backward_changes_nothing():
    def interrupted(emb, ids):
        out = emb(ids)
        emb.eval()
        for seed in range(3):
            emb(random_block(SIZES, 6, seed))
        emb.train()
        return out.flat.square().sum()

    assert_same(trained(interrupted), trained(lambda emb, ids: emb(ids).flat.square().sum()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("train", [True, False])
def test_without_gradients_nothing_is_queued(mode, train):
    emb = collection().train(train)
    rows, ids = SGD(emb, lr=1.0), random_block(SIZES, 6, 1)
    expected = emb(ids).flat.detach()
    with mode():
        out = emb(ids)
        assert torch.equal(out.flat, expected)
        assert not out.flat.requires_grad
    assert not out["words"].flat.requires_grad
    before = weights(emb)
    rows.step()
    assert_same(weights(emb), before)


def test_in_evaluation_gradients_flow_as_well():
    """Dropout is off, but a model may be tuned so."""
    assert_same(
        trained(lambda emb, ids: emb.eval()(ids).flat.square().sum()),
        trained(lambda emb, ids: emb(ids).flat.square().sum()),
    )


def test_autocast_takes_float32_embeddings_and_gives_them_float32_gradients():
    torch.manual_seed(0)
    layer, ids = nn.Linear(10, 4), random_block(SIZES, 6, 1)
    emb = collection()
    rows, before = SGD(emb, lr=1.0), emb["user"].weight.clone()
    with torch.autocast("cpu", torch.bfloat16):
        out = emb(ids).flat
        assert out.dtype == torch.float32
        leaf = out.detach().requires_grad_()
        (grad,) = torch.autograd.grad(layer(leaf).square().sum(), [leaf])
        layer(out).square().sum().backward()
    rows.step()
    expected = torch.zeros(5, 4).index_add(0, ids["user"].flat, grad[:, 6:].repeat_interleave(ids.lengths("user"), 0))
    torch.testing.assert_close(before - emb["user"].weight, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_lookup_trains_like_a_plain_one(reentrant):
    def checkpointed(emb, ids):
        start = torch.ones((), requires_grad=True)
        return checkpoint(lambda x: emb(ids).flat.square() * x, start, use_reentrant=reentrant).sum()

    assert_same(trained(checkpointed), trained(lambda emb, ids: emb(ids).flat.square().sum()))


# -- copies ----------------------------------------------------------------------------------------------------


def test_a_copy_made_between_forward_and_backward_goes_its_own_way():
    emb = collection()
    rows = Adagrad(emb, lr=0.5)
    ids = [random_block(SIZES, 6, seed) for seed in range(3)]
    emb(ids[0]).flat.square().sum().backward()
    rows.step()
    out = emb(ids[1])
    other = copy.deepcopy(emb)
    before = weights(other)
    out.flat.square().sum().backward()
    assert [other.group.pending(name) for name in other.tables] == [0, 0, 0]
    rows.step()
    assert_same(weights(other), before)
    state = other["item"].state("sum").clone()
    theirs = Adagrad(other, lr=0.5)
    other["item"].state("sum").copy_(state)
    other(ids[1])["item"].square().sum().backward()
    emb(ids[2])["item"].square().sum().backward()
    theirs.step()
    rows.step()
    assert not torch.equal(other["item"].weight, emb["item"].weight)


def test_gradients_in_double_are_taken_as_float32():
    assert_same(
        trained(lambda emb, ids: emb(ids).flat.double().square().sum()),
        trained(lambda emb, ids: emb(ids).flat.square().sum()),
    )


def test_a_batch_without_rows_passes_backward():
    emb = collection()
    rows, before = SGD(emb, lr=1.0, weight_decay=0.5), weights(emb)
    for batch in (0, 3):
        empty = IdBlock.from_ragged({name: Ragged.from_lists([[]] * batch, dtype=torch.int64) for name in SIZES})
        out = emb(empty)
        (out.flat.sum() + out["words"].flat.sum()).backward()
        rows.step()
    assert_same(weights(emb), before)


def test_gradients_of_a_wide_buffer_are_read_where_they_are():
    """One window of a gradient for every feature: columns of different offset, rows with gaps between them."""
    emb = collection()
    rows, plain = SGD(emb, lr=1.0), collection()
    twin, ids = SGD(plain, lr=1.0), random_block(SIZES, 6, 1)
    wide, gaps = factors((6, 40), 1), factors((len(ids["words"].flat), 9), 2)
    out = emb(ids)
    torch.autograd.backward([out.flat, out["words"].flat], [wide[:, 7:17], gaps[:, 3:5]])
    out = plain(ids)
    torch.autograd.backward([out.flat, out["words"].flat], [wide[:, 7:17].clone(), gaps[:, 3:5].clone()])
    for one in (rows, twin):
        one.step()
    for name in emb.tables:
        assert torch.equal(emb[name].weight, plain[name].weight)
