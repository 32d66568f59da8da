"""Models whose embedding modules became tables, beside the models they were."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec import optim
from hybridrec.embedding import fuse
from hybridrec.embedding.owner import groups_of

USERS, ITEMS, TAGS = 30, 40, 20


class WideAndDeep(nn.Module):
    """The deep part pools a history of items with padding, and weighs tags; the wide part is one number per id."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, 8, sparse=sparse)
        self.item = nn.Embedding(ITEMS, 8, padding_idx=0, sparse=sparse)
        self.history = nn.EmbeddingBag(ITEMS, 8, mode="mean", padding_idx=0, sparse=sparse, _weight=self.item.weight)
        self.tags = nn.EmbeddingBag(TAGS, 4, mode="sum", sparse=sparse)
        self.wide = nn.ModuleDict({"user": nn.Embedding(USERS, 1, sparse=sparse)})
        self.deep = nn.Sequential(nn.Linear(28, 16), nn.ReLU(), nn.Linear(16, 1))
        self.history.weight = self.item.weight

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        tags = self.tags(x["tags"], x["offsets"], per_sample_weights=x["weights"])
        parts = [self.user(x["user"]), self.item(x["item"]), self.history(x["history"]), tags]
        return (self.deep(torch.cat(parts, 1)) + self.wide["user"](x["user"]))[:, 0]


def batch(seed: int, size: int = 16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (size,), generator=draw)
    count = int(lengths.sum())
    return {
        "user": torch.randint(0, USERS, (size,), generator=draw),
        "item": torch.randint(0, ITEMS, (size,), generator=draw, dtype=torch.int32),
        "history": torch.randint(0, 4, (size, 5), generator=draw),  # many of them padding
        "tags": torch.randint(0, TAGS, (count,), generator=draw),
        "offsets": lengths.cumsum(0) - lengths,
        "weights": torch.rand(count, generator=draw),
        "label": torch.randint(0, 2, (size,), generator=draw).float(),
    }


def original(sparse: bool = True) -> WideAndDeep:
    torch.manual_seed(0)
    return WideAndDeep(sparse)


def trained(model: Callable[[Any], Tensor], optimizers: list[torch.optim.Optimizer], steps: int = 8) -> list[float]:
    losses = []
    with torch.sparse.check_sparse_tensor_invariants():
        for x in map(batch, range(steps)):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), x["label"])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
    return losses


def same(one: nn.Module, other: nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for key in mine:
        torch.testing.assert_close(mine[key], theirs[key], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(optim.SGD, torch.optim.SGD), (optim.Adagrad, torch.optim.Adagrad), (optim.Adam, torch.optim.SparseAdam)],
)
def test_a_model_trains_as_it_did(ours, theirs):
    plain = original()
    fused = fuse(copy.deepcopy(plain))
    rows = [parameter for name, parameter in plain.named_parameters() if not name.startswith("deep")]
    expected = trained(plain, [theirs(rows, lr=0.02), torch.optim.SGD(plain.deep.parameters(), lr=0.1)])
    found = trained(fused, [ours(fused, lr=0.02), torch.optim.SGD(fused.parameters(), lr=0.1)])
    assert found == pytest.approx(expected, abs=1e-6)
    same(fused, plain)


def test_gradients_of_several_backward_calls_add_up():
    plain = original()
    fused = fuse(copy.deepcopy(plain))
    for model, step in (
        (plain, torch.optim.SGD(plain.parameters(), lr=0.1).step),
        (fused, optim.SGD(fused, lr=0.1).step),
    ):
        for x in map(batch, range(3)):
            model(x).sum().backward()
        step()
    same_rows = {key for key in plain.state_dict() if not key.startswith("deep")}
    for key in same_rows:
        torch.testing.assert_close(fused.state_dict()[key], plain.state_dict()[key], atol=1e-6, rtol=1e-6)


def test_it_happens_in_place_with_equal_weights():
    plain = original()
    model = copy.deepcopy(plain)
    parts = [model.user, model.wide["user"]]
    assert fuse(model) is model
    assert parts[0] is model.user
    assert parts[1] is model.wide["user"]
    same(model, plain)
    assert [name for name, _ in model.named_parameters()] == [
        f"deep.{i}.{n}" for i in (0, 2) for n in ("weight", "bias")
    ]
    assert list(model.buffers()) == []


def test_whoever_refers_to_a_module_sees_the_table():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(3, 2), nn.Embedding(3, 2)
            self.all = [self.a, self.b]  # a plain list, which modules() does not see

        def forward(self, ids: Tensor) -> Tensor:
            return sum(part(ids) for part in self.all)  # pyright: ignore[reportReturnType]

    model = fuse(Listed())
    before = model.a.weight.clone()
    rows = optim.SGD(model, lr=1.0)
    model(torch.tensor([1])).sum().backward()
    rows.step()
    torch.testing.assert_close(model.a.weight[1], before[1] - 1)


def test_all_tables_are_in_one_group_and_one_step_updates_them():
    model = fuse(original())
    [(_, group)] = groups_of(model)
    assert group.names == ("user", "item", "tags", "wide.user")
    rows = optim.Adagrad(model, lr=0.1)
    assert rows.tables == group.names
    calls = []
    step, group.step = group.step, lambda steps: calls.append(sorted(steps)) or step(steps)  # type: ignore[method-assign]
    model(batch(0)).sum().backward()
    rows.step()
    assert calls == [sorted(group.names)]


def test_modules_that_share_a_weight_share_a_table():
    model = fuse(original())
    assert model.history.weight.data_ptr() == model.item.weight.data_ptr()
    model.item.weight[5] = 7
    assert (model.history(torch.tensor([[5, 0]])) == 7).all()
    state = model.state_dict()
    assert torch.equal(state["item.weight"], state["history.weight"])


def test_a_module_with_two_paths_is_one_table():
    shared = nn.Embedding(3, 2)
    plain = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    keys = list(plain.state_dict())
    model = fuse(plain)
    assert model["a"] is model["b"][0]  # pyright: ignore[reportIndexIssue]
    assert list(model.state_dict()) == keys == ["a.weight", "b.0.weight"]
    assert optim.SGD(model).tables == ("a",)


def test_a_model_that_is_an_embedding_is_fused_itself():
    module = nn.Embedding(5, 3, padding_idx=1)
    expected = module.weight.detach().clone()
    fused: Any = fuse(module)
    assert torch.equal(fused(torch.arange(5)), expected)
    assert optim.SGD(fused).tables == ("embedding",)
    assert list(fused.state_dict()) == ["weight"]


def test_what_is_skipped_stays_a_module_of_torch():
    model = fuse(original(sparse=False), skip=["user", "wide.user"])
    assert type(model.user) is type(model.wide["user"]) is nn.Embedding
    rows = optim.SGD(model)
    assert rows.tables == ("item", "tags")
    model(batch(0)).sum().backward()
    assert model.user.weight.grad is not None


def test_frozen_weights_are_tables_that_no_optimizer_lists():
    model = original()
    model.user.weight.requires_grad_(False)
    before = model.user.weight.clone()
    rows = optim.SGD(fuse(model), lr=0.1)
    assert rows.tables == ("item", "tags", "wide.user")
    trained(model, [rows], steps=2)
    assert torch.equal(model.user.weight, before)


def test_training_mode_stays():
    model = original().eval()
    model.tags.train()
    fuse(model)
    assert (model.user.training, model.tags.training) == (False, True)
    expected = model(batch(0))
    assert torch.equal(model.train()(batch(0)), expected)


def test_checkpoints_go_from_the_original_to_the_fused_model_and_back():
    plain, other = original(), original()
    fused = fuse(copy.deepcopy(other))
    trained(plain, [torch.optim.SGD(plain.parameters(), lr=0.5)], steps=2)
    fused.load_state_dict(plain.state_dict(), strict=True)
    same(fused, plain)
    trained(fused, [optim.SGD(fused, lr=0.5)], steps=2)
    stream = io.BytesIO()
    torch.save(fused.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True), strict=True)
    same(fused, other)


def saved(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved])
def test_a_copy_has_one_group_of_its_own_and_trains_alike(twin):
    model = fuse(original())
    rows = optim.Adagrad(model, lr=0.1)
    trained(model, [rows], steps=2)
    model(batch(9)).sum().backward()  # queued gradients are not copied
    other = twin(model)
    rows.zero_grad()
    [(_, group)], [(_, before)] = groups_of(other), groups_of(model)
    assert group is not before
    assert group.names == before.names
    assert other.history.weight.data_ptr() == other.item.weight.data_ptr() != model.item.weight.data_ptr()
    same(other, model)
    again = optim.Adagrad(other, lr=0.1)
    again.load_state_dict(rows.state_dict())
    trained(model, [rows], steps=3)
    trained(other, [again], steps=3)
    same(other, model)


def test_a_copy_knows_what_it_needs_for_errors_and_padding():
    other = copy.deepcopy(fuse(original()))
    with pytest.raises(ValueError, match="outside table 'item', 0 … 39; correct the ids"):
        other.item(torch.tensor([40]))
    before = other.item.weight.clone()
    rows = optim.SGD(other, lr=0.1)
    other.item(torch.tensor([0, 1])).sum().backward()
    rows.step()
    assert torch.equal(other.item.weight[0], before[0])
    assert not torch.equal(other.item.weight[1], before[1])


def test_a_compiled_model_gives_the_same_and_trains_the_same():
    eager = fuse(original())
    compiled = copy.deepcopy(eager)
    run = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for x in (batch(0, 16), batch(1, 9), batch(2, 5)):
        torch.testing.assert_close(run(x), eager(x), atol=1e-6, rtol=1e-6)
    found = trained(run, [optim.SGD(compiled, lr=0.5)], steps=4)
    assert found == pytest.approx(trained(eager, [optim.SGD(eager, lr=0.5)], steps=4), abs=1e-6)
    same(compiled, eager)
    torch._dynamo.reset()


def test_collections_and_fused_modules_live_in_one_model():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(5, 3)
            self.emb = hr.EmbeddingCollection([hr.Table("item", 3, rows=5)])

        def forward(self, ids: Tensor) -> Tensor:
            return self.item(ids) + self.emb({"item": ids}).flat

    model = fuse(Mixed())
    rows = optim.SGD(model, lr=1.0)
    assert rows.tables == ("item.item", "emb.item")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model(torch.tensor([1, 1, 2])).sum().backward()
    rows.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key] - torch.tensor([0, 2, 1, 0, 0])[:, None])


def test_the_seed_keys_the_rounding_of_half_rows():
    def after(seed: int) -> Tensor:
        model: Any = fuse(nn.Embedding.from_pretrained(torch.ones(50, 8).half(), freeze=False), seed=seed)
        rows = optim.SGD(model, lr=1e-4)
        model(torch.arange(50)).sum().backward()
        rows.step()
        return model.weight

    assert torch.equal(after(1), after(1))
    assert not torch.equal(after(1), after(2))
    with pytest.raises(ValueError, match="fuse: seed is -1"):
        after(-1)
