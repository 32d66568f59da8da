"""Tables as plain parameters, which any optimizer of torch may train."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import embedding_bag

from hybridrec.embedding import Constant, EmbeddingCollection, Embeddings, MultiHash, Normal, Table
from hybridrec.types import IdBlock, Ragged

COMBINERS = ["sum", "mean", "sqrtn", "max", "none"]


def block(weighted: bool = False) -> IdBlock:
    bags = Ragged.from_lists([[1, 2, 2], [], [5], [0, 3]])
    weights = torch.tensor([0.5, 2.0, 1.0, -1.0, 3.0, 0.25])
    return IdBlock.from_ragged({"item": bags}, {"item": weights} if weighted else None)


def unfused(**options: object) -> EmbeddingCollection:
    table = Table("item", 3, **({"rows": 6, "init": Normal(1)} | options))  # pyright: ignore[reportArgumentType]
    return EmbeddingCollection([table], fused=False, sparse=False)


def vectors(emb: Callable[[IdBlock], Embeddings], ids: IdBlock) -> torch.Tensor:
    out = emb(ids)["item"]
    return out.values if isinstance(out, Ragged) else out


@pytest.mark.parametrize("combiner", ["sum", "mean", "max"])
def test_pooling_equals_that_of_torch(combiner):
    emb, ids = unfused(combiner=combiner), block()["item"]
    expected = embedding_bag(ids.flat, emb.get_parameter("item.weight"), ids.offsets[:-1], mode=combiner)
    torch.testing.assert_close(vectors(emb, block()), expected)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("policy", ["hash", "zero"])
def test_gradients_are_right_in_double(combiner, weighted, policy):
    emb = unfused(combiner=combiner, rows=5, out_of_range=policy).double()
    weight = emb.get_parameter("item.weight")

    def run(rows: torch.Tensor) -> torch.Tensor:
        return vectors(lambda ids: torch.func.functional_call(emb, {"item.weight": rows}, (ids,)), block(weighted))

    assert torch.autograd.gradcheck(run, (weight,))


def test_weights_of_ids_take_gradients():
    weights = torch.ones(6, requires_grad=True)
    ids = replace(block(), weights=weights)
    emb = unfused(init=Constant(2))
    emb(ids).flat.sum().backward()
    assert (weights.grad == 6).all()


@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_are_sparse_or_dense_as_asked(sparse):
    emb = EmbeddingCollection([Table("item", 3, rows=6)], fused=False, sparse=sparse)
    emb(block()).flat.sum().backward()
    grad = emb.get_parameter("item.weight").grad
    assert grad.is_sparse == sparse
    assert grad.to_dense()[:, 0].tolist() == [1, 1, 2, 1, 0, 1]


def test_an_id_without_a_row_touches_no_row():
    emb = EmbeddingCollection([Table("item", 3, rows=2, out_of_range="zero")], fused=False)
    emb(block()).flat.sum().backward()
    grad = emb.get_parameter("item.weight").grad.coalesce()
    assert grad.indices().tolist() == [[0, 1]]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_any_torch_optimizer_trains_it(optimizer):
    emb = EmbeddingCollection([Table("item", 3, rows=6, features=["item"])], fused=False)
    rows = optimizer(emb.parameters(), lr=0.1)
    before = emb.lookup("item", torch.arange(6))
    emb(block()).flat.sum().backward()
    rows.step()
    assert (emb.lookup("item", torch.arange(6)) != before).any(1).tolist() == [True, True, True, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_initial_values_are_those_of_the_fused_form(dtype):
    tables = [Table("item", 3, rows=6, dtype=dtype), Table("query", 5, hashes=MultiHash(2, 4), init=Normal())]
    plain, fused = (EmbeddingCollection(tables, seed=9, fused=flag) for flag in (False, True))
    for name in ("item", "query"):
        assert torch.equal(plain.get_parameter(f"{name}.weight"), fused[name].weight)


def test_half_rows_are_pooled_in_float32():
    assert unfused(dtype=torch.float16)(block()).flat.dtype == torch.float32


def test_parameters_are_named_by_table_whatever_it_is_called():
    names = ["item", "training", "forward", "a.b", "items"]
    emb = EmbeddingCollection([Table(name, 2, rows=3) for name in names], fused=False)
    assert [name for name, _ in emb.named_parameters()] == [f"{name}.weight" for name in names]
    assert list(emb.state_dict()) == [f"{name}.weight" for name in names]
    assert emb.training is True
    emb.load_state_dict(emb.state_dict())


def test_a_table_that_is_not_trainable_takes_no_gradient():
    emb = unfused(trainable=False)
    assert not emb.get_parameter("item.weight").requires_grad
    assert not emb(block()).flat.requires_grad


def test_dynamic_tables_are_refused_by_name():
    with pytest.raises(ValueError, match=re.escape("table 'user' is dynamic, which fused=False has no parameters for")):
        EmbeddingCollection([Table("item", 2, rows=3), Table("user", 2, capacity=3)], fused=False)


def test_ids_out_of_range_are_refused_with_feature_and_position():
    with pytest.raises(ValueError, match="id 5 at position 3 of feature 'item' is outside table 'item', 0 … 4"):
        unfused(rows=5)(block())


def test_a_table_has_no_store_here():
    with pytest.raises(TypeError, match=re.escape("has no store; see .get_parameter('item.weight')")):
        unfused()["item"]
