"""What fuse makes of nn.Embedding and nn.EmbeddingBag, beside the modules of torch it was made of."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hybridrec import optim
from hybridrec.embedding import fuse

ROWS, DIM = 12, 5
KINDS = [torch.float32, torch.float16, torch.bfloat16]
whole = st.sampled_from([torch.int64, torch.int32])


def pair(module: nn.Module) -> tuple[nn.Module, Any]:
    """The module, and a fused copy."""
    return module, fuse(copy.deepcopy(module))


def embedding(**options: Any) -> nn.Embedding:
    torch.manual_seed(0)
    made = nn.Embedding(ROWS, DIM, **options)
    nn.init.normal_(made.weight)  # also the row of padding, which torch makes zero
    return made


def bag(**options: Any) -> nn.EmbeddingBag:
    torch.manual_seed(0)
    made = nn.EmbeddingBag(ROWS, DIM, **options)
    nn.init.normal_(made.weight)
    return made


def stepped(module: Any, optimizer: torch.optim.Optimizer, calls: list[tuple[Any, ...]]) -> Tensor:
    """The weight after a step for each call, whose loss depends on every number of the output."""
    with torch.sparse.check_sparse_tensor_invariants():
        for arguments in calls:
            optimizer.zero_grad()
            out = module(*arguments).float()
            (out * torch.linspace(-1, 2, out.numel()).view(out.shape)).sum().backward()
            optimizer.step()
    return module.weight.detach()


@st.composite
def bags(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Ids and offsets, of any whole type each; bags may be empty, or absent."""
    rows = draw(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=4), max_size=6))
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    ids = torch.tensor([one for row in rows for one in row], dtype=draw(whole))
    return ids, offsets.to(draw(whole))


# -- nn.Embedding -------------------------------------------------------------------------------------------


@given(shape=st.lists(st.integers(0, 4), max_size=3), kind=whole, dtype=st.sampled_from(KINDS))
def test_an_embedding_gives_the_same_rows_for_ids_of_any_shape(shape, kind, dtype):
    plain, fused = pair(embedding(dtype=dtype))
    ids = torch.randint(0, ROWS, shape, dtype=kind)
    found = fused(ids)
    assert found.dtype == dtype
    assert torch.equal(found, plain(ids))


def test_ids_need_not_lie_side_by_side():
    plain, fused = pair(embedding())
    ids = torch.randint(0, ROWS, (6, 4))
    for view in (ids[:, 1], ids.T, ids[::2, 1:3], ids[0, 0]):
        assert torch.equal(fused(view), plain(view))
    plain, fused = pair(bag())
    torch.testing.assert_close(fused(ids.T), plain(ids.T))
    offsets = torch.tensor([[0, 0], [2, 0], [3, 0]])[:, 0]
    torch.testing.assert_close(fused(ids[:, 1], offsets), plain(ids[:, 1], offsets))


OPTIMIZERS = [(optim.SGD, torch.optim.SGD), (optim.Adagrad, torch.optim.Adagrad), (optim.Adam, torch.optim.SparseAdam)]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_steps_of_an_embedding_give_the_weights_of_torch(ours, theirs, padding):
    plain, fused = pair(embedding(padding_idx=padding, sparse=True))
    calls = [(torch.tensor([[1, 3, 3], [11, 1, 0]]),), (torch.tensor([3, 11]),), (torch.tensor([5, 1, 1]),)]
    expected = stepped(plain, theirs(plain.parameters(), lr=0.02), calls)
    torch.testing.assert_close(stepped(fused, ours(fused, lr=0.02), calls), expected, atol=1e-6, rtol=1e-6)


def test_the_row_of_padding_is_read_but_not_touched():
    plain, fused = pair(embedding(padding_idx=3))
    rows = optim.SGD(fused, lr=0.1, momentum=0.9, weight_decay=0.5)
    before = plain.weight[3].detach().clone()
    assert torch.equal(fused(torch.tensor(3)), before)
    stepped(fused, rows, [(torch.tensor([3, 4, 3]),)] * 2)
    assert torch.equal(fused.weight[3], before)
    assert not torch.equal(fused.weight[4], plain.weight[4])
    stepped(fused, rows, [(torch.tensor([3, 3]),), (torch.tensor([], dtype=torch.int64),)])
    assert torch.equal(fused.weight[3], before)


def test_a_graph_that_is_kept_gives_its_gradient_again():
    plain, fused = pair(embedding(padding_idx=3))
    rows = optim.SGD(fused, lr=0.5)
    loss = fused(torch.tensor([3, 4])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    rows.step()
    torch.testing.assert_close(fused.weight[4], plain.weight[4].detach() - 1)
    assert torch.equal(fused.weight[3], plain.weight[3])


# -- nn.EmbeddingBag ----------------------------------------------------------------------------------------


@given(
    ragged=bags(),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 0, 1]),
    last=st.booleans(),
    weighted=st.booleans(),
    dtype=st.sampled_from(KINDS),
)
def test_a_bag_gives_what_torch_gives(ragged, mode, padding, last, weighted, dtype):
    ids, ends = ragged
    plain, fused = pair(bag(mode=mode, padding_idx=padding, include_last_offset=last, dtype=dtype))
    offsets = ends if last else ends[:-1]
    weights = torch.linspace(-1, 2, len(ids), dtype=dtype) if weighted and mode == "sum" else None
    found = fused(ids, offsets, per_sample_weights=weights)
    assert found.dtype == dtype
    close = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    expected = plain(ids.long(), offsets.long(), per_sample_weights=weights)
    torch.testing.assert_close(found, expected, atol=close, rtol=close)


@given(
    shape=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 0]),
    weighted=st.booleans(),
)
def test_a_bag_takes_a_matrix_of_ids(shape, mode, padding, weighted):
    plain, fused = pair(bag(mode=mode, padding_idx=padding))
    ids = torch.randint(0, 3, shape)
    weights = torch.rand(shape) if weighted and mode == "sum" else None
    if 0 in shape:  # torch has no offsets for these
        assert torch.equal(fused(ids, per_sample_weights=weights), torch.zeros(shape[0], DIM))
        return
    expected = plain(ids, per_sample_weights=weights)
    torch.testing.assert_close(fused(ids, per_sample_weights=weights), expected, atol=1e-6, rtol=1e-6)


BAGS = [
    (torch.tensor([1, 3, 3, 0, 0, 11, 7]), torch.tensor([0, 3, 3, 5])),
    (torch.tensor([3, 3]), torch.tensor([0, 1])),
    (torch.tensor([[1, 2, 0], [3, 3, 4]]),),
    (torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])),
]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_steps_of_a_bag_give_the_weights_of_torch(ours, theirs, padding, mode):
    plain, fused = pair(bag(mode=mode, padding_idx=padding, sparse=True))
    expected = stepped(plain, theirs(plain.parameters(), lr=0.02), BAGS[:3])
    found = stepped(fused, ours(fused, lr=0.02), BAGS)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("padding", [None, 3])
def test_steps_of_a_bag_of_maxima_give_the_weights_of_torch(padding):
    plain, fused = pair(bag(mode="max", padding_idx=padding))
    expected = stepped(plain, torch.optim.SGD(plain.parameters(), lr=0.1), BAGS[:3])
    torch.testing.assert_close(stepped(fused, optim.SGD(fused, lr=0.1), BAGS), expected)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("arguments", BAGS[:3])
def test_weights_of_samples_take_the_gradient_that_torch_gives_them(padding, arguments):
    plain, fused = pair(bag(mode="sum", padding_idx=padding))
    ids, *offsets = arguments
    found = []
    for module, optimizer in (plain, torch.optim.SGD(plain.parameters(), lr=0.1)), (fused, optim.SGD(fused, lr=0.1)):
        weights = torch.linspace(-1, 2, ids.numel()).view(ids.shape).requires_grad_()
        module(ids, *offsets, per_sample_weights=weights).square().sum().backward()
        optimizer.step()
        found.append(weights.grad)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(fused.weight, plain.weight.detach())


def test_a_bag_of_padding_alone_is_empty():
    for mode in ("sum", "mean", "max"):
        fused = fuse(bag(mode=mode, padding_idx=3))
        assert not fused(torch.tensor([[3, 3]])).any()


# -- outputs, weights, state --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [embedding, lambda **o: bag(mode="sum", **o)])
def test_an_output_may_be_changed_in_place(make):
    plain, fused = pair(make())
    optimizers = torch.optim.SGD(plain.parameters(), lr=0.1), optim.SGD(fused, lr=0.1)
    for module, optimizer in zip((plain, fused), optimizers, strict=True):
        out = module(torch.tensor([[1, 2], [4, 1]]))
        out *= 3
        nn.functional.relu_(out)
        out.sum().backward()
        optimizer.step()
    torch.testing.assert_close(fused.weight, plain.weight.detach())


@pytest.mark.parametrize("dtype", KINDS[1:])
def test_rows_in_half_precision_learn(dtype):
    plain, fused = pair(embedding(dtype=dtype))
    calls = [(torch.tensor([1, 1, 5]),)] * 3
    expected = stepped(plain, torch.optim.SGD(plain.parameters(), lr=0.1), calls)
    found = stepped(fused, optim.SGD(fused, lr=0.1), calls)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    assert not torch.equal(found[1], fuse(embedding(dtype=dtype)).weight[1])


def test_frozen_weights_stay_and_need_no_optimizer():
    module = nn.EmbeddingBag.from_pretrained(torch.randn(ROWS, DIM), mode="sum")
    plain, fused = pair(module)
    weights = torch.ones(1, 2, requires_grad=True)
    fused(torch.tensor([[1, 2]]), per_sample_weights=weights).sum().backward()
    torch.testing.assert_close(weights.grad, plain.weight[1:3].sum(1)[None])
    assert not fused(torch.tensor([[1, 2]])).requires_grad
    assert torch.equal(fused.weight, plain.weight)


def test_a_gradient_without_an_optimizer_is_refused_by_the_name_of_the_table():
    model = fuse(nn.ModuleDict({"user": embedding()}))
    with pytest.raises(RuntimeError, match="table 'user', but no row optimizer updates it"):
        model["user"](torch.tensor([1])).sum().backward()


def test_the_weight_is_the_live_rows():
    fused = fuse(embedding())
    assert list(fused.weight.shape) == [fused.num_embeddings, fused.embedding_dim] == [ROWS, DIM]
    assert not fused.weight.requires_grad
    nn.init.constant_(fused.weight, 7)
    assert (fused(torch.tensor([2])) == 7).all()
    seen = fused.weight
    stepped(fused, optim.SGD(fused, lr=0.1), [(torch.tensor([2]),)])
    assert (seen[2] != 7).any()
    with pytest.raises((AttributeError, KeyError)):
        fused.weight = nn.Parameter(torch.zeros(ROWS, DIM))


def test_attributes_of_the_module_stay():
    fused = fuse(bag(mode="max", padding_idx=-1, include_last_offset=True))
    assert (fused.mode, fused.padding_idx, fused.include_last_offset) == ("max", ROWS - 1, True)
    assert repr(fused) == "FusedEmbeddingBag(12, 5, padding_idx=11, mode='max', include_last_offset=True)"
    assert repr(fuse(embedding())) == "FusedEmbedding(12, 5)"
    assert fuse(embedding(padding_idx=-2)).padding_idx == ROWS - 2


@pytest.mark.parametrize("make", [embedding, bag])
def test_checkpoints_go_both_ways(make):
    plain, fused = pair(nn.Sequential(make()))
    assert list(fused.state_dict()) == list(plain.state_dict()) == ["0.weight"]
    assert type(fused.state_dict()["0.weight"]) is Tensor
    with torch.no_grad():
        plain[0].weight.fill_(2)
    fused.load_state_dict(plain.state_dict(), strict=True)
    assert (fused[0].weight == 2).all()
    fused[0].weight.fill_(3)
    plain.load_state_dict(fused.state_dict(), strict=True)
    assert (plain[0].weight == 3).all()


def test_checkpoints_that_do_not_fit_are_refused_and_change_nothing():
    fused = fuse(nn.Sequential(embedding()))
    before = fused[0].weight.clone()
    for state, message in [
        ({}, 'Missing key(s) in state_dict: "0.weight"'),
        ({"0.weight": torch.zeros(ROWS + 1, DIM)}, "size mismatch for 0.weight: found [13, 5], wanted [12, 5]"),
        ({"0.weight": before, "0.bias": before}, 'Unexpected key(s) in state_dict: "0.bias"'),
    ]:
        with pytest.raises(RuntimeError, match=re.escape(message)):
            fused.load_state_dict(state)
    assert fused.load_state_dict({}, strict=False).missing_keys == ["0.weight"]
    assert torch.equal(fused[0].weight, before)


# -- calls that torch refuses too ---------------------------------------------------------------------------

IDS, ENDS = torch.tensor([1, 2, 3]), torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (embedding, (IDS.float(),), TypeError, "FusedEmbedding 'x' takes ids of int64 or int32, got torch.float32"),
        (embedding, (IDS.short(),), TypeError, "got torch.int16; convert them with .long()"),
        (embedding, (IDS.to("meta"),), ValueError, "FusedEmbedding 'x': ids are on meta, but the rows on cpu"),
        (embedding, (IDS + 9,), ValueError, "id 12 at position 2 of feature 'x' is outside table 'x', 0 … 11; correct"),
        (bag, (IDS - 2, ENDS), ValueError, "id -1 at position 0 of feature 'x' is outside table 'x', 0 … 11"),
        (bag, (IDS,), ValueError, "takes ids [N] with offsets [bags], or ids [bags, n] without; got ids [3] and"),
        (bag, (IDS[None], ENDS), ValueError, "got ids [1, 3] and offsets [2]"),
        (bag, (IDS[None, None],), ValueError, "got ids [1, 1, 3] and offsets none"),
        (bag, (IDS, ENDS[None]), ValueError, "got ids [3] and offsets [1, 2]"),
        (bag, (IDS, ENDS.float()), TypeError, "takes offsets of int64 or int32, got torch.float32"),
        (bag, (IDS, ENDS.flip(0)), ValueError, "offsets of feature 'x' must not decrease and must end with its ids"),
        (bag, (IDS, ENDS + 1), ValueError, "offsets of feature 'x' must not decrease"),
        (bag, (IDS, ENDS * 2), ValueError, "offsets of feature 'x' must not decrease"),
        (bag, (IDS, ENDS[:0]), ValueError, "offsets of feature 'x' must not decrease"),
        (
            bag,
            (IDS, ENDS, IDS.float()),
            ValueError,
            "per_sample_weights go with mode 'sum', as in torch, not with 'mean'",
        ),
        (
            lambda: bag(mode="sum"),
            (IDS, ENDS, torch.ones(2)),
            ValueError,
            "must have the shape of the ids, [3], got [2]",
        ),
        (lambda: bag(padding_idx=1), (IDS, ENDS * -1), ValueError, "offsets must not decrease"),
        (lambda: bag(include_last_offset=True), (IDS, ENDS), ValueError, "offsets of feature 'x' must not decrease"),
        (lambda: bag(include_last_offset=True), (IDS, ENDS[:0]), ValueError, "offsets are empty"),
    ],
)
def test_calls_that_cannot_be_answered_are_refused(make, arguments, error, message):
    model = fuse(nn.ModuleDict({"x": make()}))
    with pytest.raises(error, match=re.escape(message)):
        model["x"](*arguments)
