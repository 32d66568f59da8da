from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch

from hybridrec import optim
from hybridrec.embedding import EmbeddingCollection, MultiHash, Table
from hybridrec.ops.pooled_lookup.reference import pool
from hybridrec.types import Batch, IdBlock, Ragged

TABLES = [
    Table("item", 4, rows=50, features=["item", "history"], combiner={"item": "sum", "history": "mean"}),
    Table("word", 3, rows=20, features=["words"], combiner="none", out_of_range="zero"),
    Table("query", 2, hashes=MultiHash(2, 30), features=["query"], combiner="mean"),
    Table("user", 5, capacity=100),
]


def features() -> dict[str, torch.Tensor | Ragged]:
    return {
        "user": torch.tensor([7, -8, 9]),
        "history": Ragged.from_lists([[1, 1], [], [49]]),
        "unused": torch.tensor([1, 2, 3]),
        "item": torch.tensor([[1, 2], [3, 4], [5, 6]]),
        "words": Ragged.from_lists([[3], [], [99, 4]]),
        "query": Ragged.from_lists([[2**62], [5, 6, 7], []]),
    }


def block() -> IdBlock:
    return IdBlock.from_ragged(features())


def both() -> list[EmbeddingCollection]:
    """A fused and an unfused collection with the same fixed tables."""
    return [EmbeddingCollection(TABLES[:3], fused=fused) for fused in (True, False)]


def test_the_output_has_the_features_as_declared():
    out = EmbeddingCollection(TABLES)(block())
    assert (out.names, out.dims) == (("item", "history", "words", "query", "user"), (4, 4, 3, 2, 5))
    assert list(out.flat.shape) == [3, 15]
    assert out["words"].to_list() is not None
    assert out["words"].lengths().tolist() == [1, 0, 2]
    assert torch.equal(out["user"], out.flat[:, 10:])


def test_rows_are_pooled_as_by_the_reference():
    emb = EmbeddingCollection(TABLES)
    out, ids = emb(block()), block()
    for name, table, combiner in [("item", "item", "sum"), ("history", "item", "mean"), ("user", "user", "sum")]:
        rows = emb.lookup(table, ids[name].flat)
        expected = pool(rows, torch.arange(len(rows)), ids[name].offsets, None, combiner)
        torch.testing.assert_close(out[name], expected)
    assert torch.equal(out["words"].values, emb.lookup("word", ids["words"].flat))
    assert out["words"].values[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn", "none"])
def test_a_multi_hash_feature_pools_sums_of_rows_and_counts_ids(combiner, weighted):
    table = Table("query", 2, hashes=MultiHash(3, 30), combiner=combiner)
    ids = Ragged.from_lists([[2**62], [5, 6, 7], []])
    weights = torch.tensor([2.0, 1.0, 0.5, 3.0]) if weighted else None
    given = IdBlock.from_ragged({"query": ids}, {"query": weights} if weights is not None else None)
    for fused in (True, False):
        emb = EmbeddingCollection([table], fused=fused)
        rows = emb.lookup("query", ids.flat)  # [4, 2]: each the sum of three rows
        expected = pool(rows, torch.arange(4), ids.offsets, weights, combiner)
        out = emb(given)["query"]
        torch.testing.assert_close(out.values if isinstance(out, Ragged) else out, expected)


def test_fused_and_unfused_give_the_same():
    fused, plain = (emb(block()) for emb in both())
    torch.testing.assert_close(fused.flat, plain.flat)
    torch.testing.assert_close(fused["words"].values, plain["words"].values)


@pytest.mark.parametrize("fused", [True, False])
def test_ids_come_as_block_batch_or_mapping(fused):
    emb = EmbeddingCollection(TABLES[:3], fused=fused)
    expected = emb(block()).flat
    assert torch.equal(emb(Batch(block(), torch.zeros(3, 0))).flat, expected)
    assert torch.equal(emb(features()).flat, expected)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_batch_without_ids_gives_zeros(rows):
    empty = IdBlock.from_ragged({name: Ragged.from_lists([[]] * rows) for name in features()})
    for emb in [*both(), EmbeddingCollection(TABLES)]:
        out = emb(empty)
        assert list(out.flat.shape) == [
            rows,
            sum(dim for name, dim in zip(out.names, out.dims, strict=True) if name != "words"),
        ]
        assert not out.flat.any()
        assert list(out["words"].values.shape) == [0, 3]


def test_training_makes_rows_and_evaluation_does_not():
    emb = EmbeddingCollection(TABLES).eval()
    assert not emb(block())["user"].any()
    assert len(emb["user"]) == 0
    assert not emb.lookup("user", [7]).any()
    emb.train()
    assert emb(block())["user"].any()
    assert emb["user"].ids().tolist() == [-8, 7, 9]
    assert torch.equal(emb.eval()(block())["user"], emb.lookup("user", [7, -8, 9]))


def test_lookup_takes_ids_of_any_shape():
    for emb in both():
        assert list(emb.lookup("item", torch.tensor([[1, 2, 3]])).shape) == [1, 3, 4]
        assert list(emb.lookup("item", torch.tensor(3)).shape) == [4]
        assert list(emb.lookup("item", []).shape) == [0, 4]
        assert list(emb.lookup("query", torch.empty(2, 0, dtype=torch.int64)).shape) == [2, 0, 2]
        assert torch.equal(emb.lookup("item", torch.tensor([3], dtype=torch.int32)), emb.lookup("item", [3]))
        assert not emb.lookup("item", [3]).requires_grad
        assert emb.lookup("word", [99]).tolist() == [[0, 0, 0]]
        with pytest.raises(TypeError, match=re.escape("ids must be whole numbers, got torch.float32")):
            emb.lookup("item", [1.5])
        with pytest.raises(ValueError, match="id 50 at position 1 is outside table 'item', 0 … 49"):
            emb.lookup("item", [3, 50])


def test_names_that_are_not_there_are_refused_beside_those_that_are():
    emb = EmbeddingCollection(TABLES)
    for ask in (lambda: emb["nope"], lambda: emb.lookup("nope", [1])):
        with pytest.raises(KeyError) as caught:
            ask()
        assert str(caught.value) == "no table 'nope' in this collection; it has item, word, query, user"
    with pytest.raises(KeyError) as caught:
        emb(block().select(["item", "words"]))
    assert str(caught.value) == "no feature 'history', 'query', 'user' among the ids; there are item, words"
    with pytest.raises(KeyError, match="no feature 'item'"):
        emb({})
    assert "item" in emb
    assert "nope" not in emb


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.tensor([1]), TypeError, "ids must be an IdBlock, a Batch or a mapping of features, got Tensor"),
        ({"t": torch.tensor([1.0])}, TypeError, "ids must be whole numbers, but 't' holds torch.float32"),
        ({"t": Ragged.from_lists(["a"])}, TypeError, "feature 't' holds strings"),
        (IdBlock.from_lists({"t": [1]}).to("meta"), ValueError, "ids are on meta, but the rows on cpu"),
        ({"t": torch.tensor([1, 3])}, ValueError, "id 3 at position 1 of feature 't' is outside table 't', 0 … 2"),
        ({"t": torch.tensor([-1])}, ValueError, "id -1 at position 0 of feature 't'"),
        ({"t": torch.tensor([-(2**63)])}, ValueError, "this id stands for a null"),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_ids_that_cannot_be_looked_up_are_refused(ids, error, message, fused):
    with pytest.raises(error, match=re.escape(message)):
        EmbeddingCollection([Table("t", 2, rows=3)], fused=fused)(ids)


def test_offsets_that_decrease_are_refused():
    bad = IdBlock(
        ("t",), torch.zeros(3, dtype=torch.int64), (0, 3), (None,), torch.tensor([[0, 2, 1, 3]]), batch_size=3
    )
    with pytest.raises(ValueError, match="offsets of feature 't' must not decrease"):
        EmbeddingCollection([Table("t", 2, rows=3)])(bad)


def test_an_error_leaves_every_table_as_it_was():
    emb = EmbeddingCollection([Table("user", 2, capacity=5), Table("item", 2, rows=3)])
    with pytest.raises(ValueError, match="outside table 'item'"):
        emb(IdBlock.from_lists({"user": [5, 6], "item": [1, 9]}))
    assert len(emb["user"]) == 0


def test_more_ids_at_once_than_capacity_are_refused_by_name():
    emb = EmbeddingCollection([Table("user", 2, capacity=2)])
    with pytest.raises(ValueError, match=r"table 'user'.*give it a larger capacity"):
        emb({"user": torch.tensor([1, 2, 3])})
    assert len(emb["user"]) == 0


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ([], {}, "a collection needs at least one table"),
        ([Table("a", 2, rows=3)] * 2, {}, "tables must have different names, but a appears more than once"),
        (
            [Table("a", 2, rows=3, features=["x"]), Table("b", 2, rows=3, features=["x"])],
            {},
            "feature 'x' feeds table 'a' and table 'b', but outputs are named by feature; put one of the tables into",
        ),
        ([Table("a", 2, rows=3)], {"device": "meta"}, "device is 'meta'; rows live on 'cpu' or on 'cuda'"),
        ([Table("a", 2, rows=3)], {"sparse": False}, "sparse=False is about the gradients of parameters"),
        ([Table("a", 2, rows=3)], {"seed": -1}, "seed is -1"),
    ],
)
def test_collections_that_make_no_sense_are_refused(tables, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        EmbeddingCollection(tables, **options)


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="tables must be a list of Table"):
        EmbeddingCollection(["item"])  # pyright: ignore[reportArgumentType]  (that is the point)


def test_seed_and_table_name_decide_the_rows_and_nothing_else_does():
    one, again = (EmbeddingCollection(TABLES, seed=4) for _ in range(2))
    alone = EmbeddingCollection([Table("item", 4, rows=50, features=["x"])], seed=4)
    assert torch.equal(one["item"].weight, again["item"].weight)
    assert torch.equal(one["item"].weight, alone["item"].weight)
    assert not torch.equal(one["item"].weight, EmbeddingCollection(TABLES, seed=5)["item"].weight)
    for emb, order in ((one, [3, 1, 2]), (again, [2, 3, 1])):
        for user in order:
            emb(IdBlock.from_ragged({**features(), "user": torch.tensor([user] * 3)}))
    assert torch.equal(one["user"].export().rows, again["user"].export().rows)


def test_rows_are_neither_parameters_nor_buffers():
    emb = EmbeddingCollection(TABLES)
    assert list(emb.parameters()) == []
    assert list(emb.buffers()) == []


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda emb: pickle.loads(pickle.dumps(emb))], ids=["copied", "pickled"]
)
@pytest.mark.parametrize("fused", [True, False])
def test_copies_hold_the_same_rows_and_go_their_own_way(twin, fused):
    emb = EmbeddingCollection(TABLES if fused else TABLES[:3], fused=fused)
    emb(block())
    other = twin(emb)
    assert torch.equal(other.eval()(block()).flat, emb.eval()(block()).flat)
    (other["item"].weight if fused else other.get_parameter("item.weight")).data.fill_(1)
    assert emb.lookup("item", [1]).tolist() != other.lookup("item", [1]).tolist() == [[1, 1, 1, 1]]
    assert torch.equal(other(block())["history"], torch.tensor([[1.0] * 4, [0.0] * 4, [1.0] * 4]))
    assert list(other.state_dict()) == list(emb.state_dict())


def test_repr_is_a_readable_list_of_tables():
    assert repr(EmbeddingCollection(TABLES)).split("\n") == [
        "EmbeddingCollection(",
        "  table  dim  rows   dtype    features",
        "  item   4    50     float32  item (sum), history (mean)",
        "  word   3    20     float32  words (none)",
        "  query  2    60     float32  query (mean)",
        "  user   5    ≤ 100  float32  user (sum)",
        ")",
    ]


def test_tables_features_and_dimensions_can_be_asked_for():
    emb = EmbeddingCollection(TABLES)
    assert list(emb.tables.values()) == TABLES
    assert emb.features == ("item", "history", "words", "query", "user")
    emb.tables.clear()
    assert len(emb.tables) == 4


def test_gradients_flow_into_weights_of_ids_and_layers_above():
    emb = EmbeddingCollection([Table("t", 2, rows=3, trainable=False)])
    weights = torch.ones(2, requires_grad=True)
    ids = IdBlock.from_ragged({"t": Ragged.from_lists([[0, 1]])}, {"t": weights})
    top = torch.nn.Linear(2, 1)
    top(emb(ids).flat).sum().backward()
    assert weights.grad is not None
    expected = emb.lookup("t", [0, 1]) @ top.weight.detach()[0]
    torch.testing.assert_close(weights.grad, expected)


class Model(torch.nn.Module):
    def __init__(self, tables: list[Table]) -> None:
        super().__init__()
        self.emb = EmbeddingCollection(tables)
        self.top = torch.nn.LazyLinear(1)

    def forward(self, ids: IdBlock) -> torch.Tensor:
        out = self.emb(ids)
        return self.top(out.flat).sum() + out["item"].sum() + out["words"].values.sum()


@pytest.mark.parametrize("tables", [[TABLES[0], TABLES[1], TABLES[3]], TABLES], ids=["plain", "multi-hash"])
def test_a_compiled_model_trains_like_an_eager_one(tables):
    eager = Model(tables)
    eager(block())
    compiled = copy.deepcopy(eager)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for model, call in ((eager, eager), (compiled, run)):
        rows = optim.SGD(model, lr=0.1)
        for cut in (3, 2, 3):
            ids = IdBlock.from_ragged({name: column[:cut] for name, column in features().items()})
            call(ids).backward()
            rows.step()
    mine, theirs = eager.state_dict(), compiled.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    torch._dynamo.reset()


def test_copies_have_the_optimizer_state_and_no_optimizer():
    emb = EmbeddingCollection(TABLES)
    rows = optim.Adagrad(emb, lr=0.1)
    emb(block()).flat.sum().backward()
    rows.step()
    other = copy.deepcopy(emb)
    for name in ("item", "user"):
        assert torch.equal(other[name].export().state["sum"], emb[name].export().state["sum"])
        assert other[name].export().state["sum"].any()
    optim.SGD(other, lr=0.1)
    assert emb["item"].rule != other["item"].rule


def test_rows_that_are_first_used_in_inference_mode_can_be_trained_afterwards():
    emb = EmbeddingCollection([Table("item", dim=4, rows=10, where="server")])  # which gets its memory on first use
    with torch.inference_mode():
        emb.lookup("item", [3])
    assert not emb["item"].weight.is_inference()
