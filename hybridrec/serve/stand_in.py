"""Stand-ins for the collections of a model, so that it can be traced without its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hybridrec.embedding import EmbeddingCollection, Embeddings
from hybridrec.embedding.owner import RowOwner

Collections = dict[str, EmbeddingCollection]


def collections_of(model: nn.Module) -> Collections:
    """The collections inside a model by their path, each once; an error where rows live in anything else."""
    found: Collections = {}
    if isinstance(model, EmbeddingCollection):
        raise ValueError("a collection alone gives no scores; export the model that it is part of")
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection) and module.fused:
            found[path] = module
        elif isinstance(module, RowOwner):
            kind = "fused=False" if isinstance(module, EmbeddingCollection) else type(module).__name__
            raise ValueError(
                f"module {path!r} ({kind}) cannot be exported; export takes the rows of EmbeddingCollection with "
                "fused=True"
            )
    return found


class TracedIds:
    """Goes into a collection, and tells nothing."""

    def __getattr__(self, name: str) -> Any:
        raise _unreadable(f"ids.{name}")

    def __getitem__(self, name: str) -> Any:
        raise _unreadable(f"ids[{name!r}]")


@dataclass(frozen=True)
class TracedBatch:
    """What a model may read of a batch while it is traced."""

    dense: Tensor
    dense_names: tuple[str, ...]
    ids: TracedIds = field(default_factory=TracedIds)

    def __getattr__(self, name: str) -> Any:
        raise _unreadable(name)


def _unreadable(what: str) -> ValueError:
    return ValueError(
        f"the model reads batch.{what}; only what it does with its collections and batch.dense can be exported"
    )


class StandIn(nn.Module):
    """Hands out vectors that were put into it; in all else it answers as the collection does."""

    def __init__(self, collection: EmbeddingCollection) -> None:
        super().__init__()
        self.real = (collection,)  # in a tuple, so that the rows are no part of this module
        self.vectors: Embeddings | None = None

    def forward(self, ids: Any) -> Embeddings:
        assert self.vectors is not None, "set before each call"
        return self.vectors

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["real"][0], name)


@contextmanager
def standing_in(model: nn.Module, collections: Collections) -> Iterator[list[StandIn]]:
    """The model in eval mode, not compiled, with stand-ins; as it was before, afterwards."""
    stands = {id(each): StandIn(each) for each in collections.values()}
    modules = list(model.modules())
    modes = [module.training for module in modules]
    compiled = [module._compiled_call_impl for module in modules]
    places = [
        (parent, name, child) for parent in modules for name, child in parent._modules.items() if id(child) in stands
    ]
    try:
        model.eval()
        for module in modules:
            module._compiled_call_impl = None
        for parent, name, child in places:
            parent._modules[name] = stands[id(child)]
        yield list(stands.values())
    finally:
        for parent, name, child in places:
            parent._modules[name] = child
        for module, mode, call in zip(modules, modes, compiled, strict=True):
            module.training, module._compiled_call_impl = mode, call
