"""Which modules can be fused, and what is said of the others."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from hybridrec.embedding import fuse
from hybridrec.embedding.fusible import candidates


class Scaled(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class Named(nn.Embedding):
    """Differs in nothing that counts."""

    def __init__(self, *shape: int, name: str = "named") -> None:
        super().__init__(*shape)
        self.name = name

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class Saved(nn.EmbeddingBag):
    def _save_to_state_dict(self, *arguments: Any) -> None:
        raise AssertionError


def plain(**options: Any) -> nn.Embedding:
    return nn.Embedding(6, 3, **options)


def hooked(kind: str) -> nn.Embedding:
    module = plain()
    getattr(module, f"register_{kind}_hook")(lambda *_: None)
    return module


def changed(**attributes: Any) -> nn.Embedding:
    module = plain()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def watched() -> nn.Embedding:
    module = plain()
    module.weight.register_hook(lambda grad: grad)
    return module


def doubled() -> nn.Module:
    return nn.utils.parametrize.register_parametrization(plain(), "weight", nn.ReLU())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: plain(max_norm=1.5), "max_norm=1.5 changes rows when they are looked up"),
        (lambda: nn.EmbeddingBag(6, 3, max_norm=2.0), "max_norm=2.0 changes rows"),
        (lambda: plain(scale_grad_by_freq=True), "scale_grad_by_freq=True divides gradients by counts of ids"),
        (lambda: plain(dtype=torch.float64), "its weight is torch.float64; rows are torch.float32, torch.float16"),
        (lambda: plain(device="meta"), "its weight is on meta, but rows live on 'cpu' or on 'cuda'"),
        (lambda: nn.Embedding(0, 3), "its weight is [0, 3], which holds no rows"),
        (lambda: Scaled(6, 3), "its class Scaled defines forward anew"),
        (lambda: Saved(6, 3), "its class Saved defines _save_to_state_dict anew"),
        (lambda: changed(forward=lambda input: input), "its class Embedding defines forward anew"),
        (lambda: changed(scale=nn.Parameter(torch.ones(1))), "it holds scale beside its weight"),
        (lambda: hooked("forward"), "it has forward hooks, which may count on its weight"),
        (lambda: hooked("forward_pre"), "it has forward pre hooks"),
        (lambda: hooked("full_backward"), "it has backward hooks"),
        (lambda: hooked("state_dict_pre"), "it has state dict pre hooks"),
        (doubled, "its weight is parametrized, and a table is not"),
        (watched, "its weight has backward hooks, which a table does not call"),
    ],
)
def test_modules_that_do_more_than_a_table_are_refused_by_name(make, problem):
    model = nn.ModuleDict({"fine": plain(), "odd": nn.Sequential(make())})
    refused = f"some modules cannot be fused; leave them as they are with skip=['odd.0']:\n  'odd.0': {problem}"
    with pytest.raises(ValueError, match=re.escape(refused)):
        fuse(model)
    assert type(model["fine"]) is nn.Embedding
    fuse(model, skip=["odd.0"])
    assert type(model["fine"]).__name__ == "FusedEmbedding"
    assert isinstance(model["odd"][0], nn.Embedding | nn.EmbeddingBag)


def test_all_that_is_wrong_is_said_at_once():
    model = nn.ModuleDict({"a": plain(max_norm=1), "b": plain(), "c": Scaled(2, 2)})
    with pytest.raises(ValueError, match=r"(?s)skip=\['a', 'c'\]:\n  'a': max_norm=1 .*\n  'c': its class Scaled"):
        fuse(model)


def test_a_model_that_is_itself_an_odd_embedding_is_refused():
    with pytest.raises(ValueError, match=r"^this module cannot be fused: max_norm=1 changes"):
        fuse(plain(max_norm=1))


def test_a_subclass_that_computes_the_same_is_fused():
    fused: Any = fuse(Named(6, 3, name="here"))
    assert (fused(torch.tensor([1])) == 1).all()
    assert fused.name == "here"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Embedding(6, 3)
        self.more = nn.EmbeddingBag(6, 3, _weight=None)
        self.head = nn.Linear(3, 6, bias=False)


def test_a_weight_that_another_kind_of_module_has_too_is_refused():
    model = Tied()
    model.head.weight = model.inputs.weight
    message = "skip=['inputs']:\n  'inputs': its weight is also head.weight, which would no longer be the same"
    with pytest.raises(ValueError, match=re.escape(message)):
        fuse(model)
    fuse(model, skip=["inputs"])
    assert model.head.weight is model.inputs.weight


def test_a_weight_in_the_memory_of_another_tensor_is_refused():
    model = Tied()
    model.head.weight.data = model.inputs.weight.data
    with pytest.raises(ValueError, match=r"its weight is also head.weight"):
        fuse(model)
    model = Tied()
    model.register_buffer("first", model.more.weight.data[0])
    with pytest.raises(ValueError, match=r"'more': its weight is also first"):
        fuse(model)


def test_embeddings_that_share_a_weight_are_fused_or_skipped_together():
    model = Tied()
    model.more.weight = model.inputs.weight
    with pytest.raises(ValueError, match=r"'more': its weight is also inputs.weight"):
        fuse(model, skip=["inputs"])
    fuse(model)


def test_lazy_parameters_elsewhere_are_no_matter():
    model = fuse(nn.Sequential(nn.Embedding(3, 2), nn.LazyLinear(4)))
    assert model(torch.tensor([0, 2])).shape == (2, 4)
    assert [name for name, _ in model.named_parameters()] == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("skip", "error", "message"),
    [
        (["b"], ValueError, "skip names 'b', which is no embedding module; valid are a, tower.0, again.0"),
        (["tower"], ValueError, "skip names 'tower', which is no embedding module"),
        ("a", TypeError, "skip is 'a'; it must be a list of paths: skip=['a']"),
        (["a", "again.0"], ValueError, "skip names every nn.Embedding and nn.EmbeddingBag of the model"),
    ],
)
def test_a_skip_that_makes_no_sense_is_refused(skip, error, message):
    tower = nn.Sequential(nn.Embedding(3, 2))
    model = nn.ModuleDict({"a": nn.EmbeddingBag(3, 2), "tower": tower, "again": tower})
    with pytest.raises(error, match=re.escape(message)):
        fuse(model, skip=skip)


def test_a_model_without_embeddings_is_refused():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"there is no nn.Embedding and no nn.EmbeddingBag in this Sequential to fuse"):
        fuse(model)
    once = fuse(nn.Sequential(nn.Embedding(3, 2)))
    with pytest.raises(ValueError, match=r"there is no nn.Embedding"):
        fuse(once)


def test_candidates_are_listed_once_with_all_their_paths():
    shared = nn.Embedding(3, 2)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([nn.EmbeddingBag(3, 2), shared]), "c": nn.Linear(1, 1)})
    assert [found.paths for found in candidates(model)] == [("a", "b.1"), ("b.0",)]
