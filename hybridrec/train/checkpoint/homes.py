"""The tables inside a model by name, and its state without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hybridrec.embedding.collection import EmbeddingCollection
from hybridrec.embedding.fused_modules import FusedModule
from hybridrec.embedding.owner import RowOwner, groups_of
from hybridrec.embedding.unfused import TableWeight
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.train.checkpoint.table_info import Home

COMPILED = "_orig_mod"  # what torch.compile puts into the paths of modules
ON_RANKS = ShardedModel, nn.parallel.DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, `hr.shard` and DistributedDataParallel."""
    while True:
        if isinstance(model, (*ON_RANKS, nn.DataParallel)):
            model = model.get_submodule("module")
        elif isinstance(model._modules.get(COMPILED), nn.Module):
            model = model.get_submodule(COMPILED)
        else:
            return model


def distributed(model: nn.Module) -> bool:
    """Whether every rank has the model, or a part of it, so that all of them load it together."""
    if isinstance(model, ON_RANKS):
        return True
    inside = model._modules.get(COMPILED)
    return isinstance(inside, nn.Module) and distributed(inside)


def plain(name: str) -> str:
    """The name of a part of a model, the same whether it is compiled or not.

    >>> plain("top._orig_mod.0.weight")
    'top.0.weight'
    """
    return ".".join(part for part in name.split(".") if part != COMPILED)


def homes_of(model: nn.Module) -> dict[str, Home]:
    """Every table of the model once, as "path.table"; one that `fuse` made goes by the path of its module.

    >>> import hybridrec as hr
    >>> emb = hr.EmbeddingCollection([hr.Table("item", dim=2, rows=3)])
    >>> list(homes_of(hr.fuse(nn.ModuleDict({"emb": emb, "word": nn.Embedding(4, 1)}))))
    ['emb.item', 'word']
    """
    found: dict[str, Home] = {}
    seen: set[int] = set()
    for name, home in _all(model):
        if id(home) in seen:
            continue
        if name in found:
            raise ValueError(f"two tables of the model would be saved as {name!r}; rename one of them")
        seen.add(id(home))
        found[name] = home
    return found


def _all(model: nn.Module) -> Iterator[tuple[str, Home]]:
    for path, module in model.named_modules():
        if isinstance(module, FusedModule):
            yield plain(path) or module._store.table.name, module._store
        elif isinstance(module, EmbeddingCollection):
            for name in module.tables:
                home = module[name] if module.fused else module._modules[name]
                assert isinstance(home, Home)
                yield _joined(path, name), home
    for path, group in groups_of(model):  # owners of other kinds
        for name, store in group.stores.items():
            yield _joined(path, name), store


def _joined(path: str, name: str) -> str:
    return f"{plain(path)}.{name}".removeprefix(".")


@contextmanager
def rows_left_out(model: nn.Module) -> Iterator[None]:
    """Within it, `state_dict` and `load_state_dict` of the model pass over the rows of tables."""
    names = ("_save_to_state_dict", "_load_from_state_dict")
    owners = [module for module in model.modules() if isinstance(module, RowOwner | TableWeight)]
    for module in owners:
        for name in names:
            module.__dict__[name] = _of_module(module, getattr(nn.Module, name))
    try:
        yield
    finally:
        for module in owners:
            for name in names:
                del module.__dict__[name]


def _of_module(module: nn.Module, method: Callable[..., None]) -> Callable[..., None]:
    if isinstance(module, TableWeight):
        return lambda *args: None
    return lambda *args: method(module, *args)


def state_without_rows(model: nn.Module) -> dict[str, Any]:
    """The `state_dict` of the model but for its tables, by plain names; tensors are those of the model, not copies."""
    with rows_left_out(model):
        return {plain(name): value for name, value in model.state_dict().items()}
