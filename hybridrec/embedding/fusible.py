"""Which modules of a model can become tables, and why others cannot: a decision that changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from hybridrec.embedding.table import DTYPES

# What a subclass may define by itself: none of it matters once the rows are there.
HARMLESS = {"__init__", "__repr__", "extra_repr", "reset_parameters"}


@dataclass(frozen=True, eq=False)
class Candidate:
    """An embedding module, and every path that leads to it in the model."""

    module: nn.Embedding | nn.EmbeddingBag
    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def base(self) -> type[nn.Module]:
        return nn.Embedding if isinstance(self.module, nn.Embedding) else nn.EmbeddingBag


def candidates(model: nn.Module) -> list[Candidate]:
    """Every nn.Embedding and nn.EmbeddingBag inside the model, once, in its order.

    >>> [found.path for found in candidates(nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1)))]
    ['0']
    """
    modules: dict[int, nn.Embedding | nn.EmbeddingBag] = {}
    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            modules[id(module)] = module
            paths.setdefault(id(module), []).append(path)
    return [Candidate(module, tuple(paths[key])) for key, module in modules.items()]


def choose(model: nn.Module, skip: Iterable[str]) -> list[Candidate]:
    """The candidates that are not to be skipped, if all of them can be fused; else an error that names the others."""
    found = candidates(model)
    if not found:
        raise ValueError(f"there is no nn.Embedding and no nn.EmbeddingBag in this {type(model).__name__} to fuse")
    left_out = _checked(skip, [path for candidate in found for path in candidate.paths])
    chosen = [candidate for candidate in found if left_out.isdisjoint(candidate.paths)]
    if not chosen:
        raise ValueError("skip names every nn.Embedding and nn.EmbeddingBag of the model, so there is nothing to fuse")
    holders = _holders(model)
    problems = {candidate.path: _problem(candidate, chosen, holders) for candidate in chosen}
    if bad := {path: problem for path, problem in problems.items() if problem}:
        raise ValueError(_refusal(bad))
    return chosen


def _refusal(bad: Mapping[str, str]) -> str:
    if "" in bad:
        return f"this module cannot be fused: {bad['']}"
    lines = "".join(f"\n  {path!r}: {problem}" for path, problem in bad.items())
    return f"some modules cannot be fused; leave them as they are with skip={list(bad)}:{lines}"


def _checked(skip: Iterable[str], valid: list[str]) -> set[str]:
    if isinstance(skip, str):
        raise TypeError(f"skip is {skip!r}; it must be a list of paths: skip=[{skip!r}]")
    names = list(skip)
    for name in names:
        if name not in valid:
            raise ValueError(f"skip names {name!r}, which is no embedding module; valid are {', '.join(valid)}")
    return set(names)


def _problem(candidate: Candidate, chosen: list[Candidate], holders: Mapping[int, list[str]]) -> str | None:
    """Why the module cannot be fused, or None."""
    module = candidate.module
    if is_parametrized(module):
        return "its weight is parametrized, and a table is not"
    if hooks := sorted(name for name, held in vars(module).items() if name.endswith("_hooks") and held):
        return f"it has {hooks[0].strip('_').replace('_', ' ')}, which may count on its weight"
    if name := next(_overridden(candidate), None):
        return f"its class {type(module).__name__} defines {name} anew"
    if more := sorted({*module._parameters, *module._buffers, *module._modules} - {"weight"}):
        return f"it holds {', '.join(more)} beside its weight"
    if module.max_norm is not None:
        return f"max_norm={module.max_norm} changes rows when they are looked up"
    if module.scale_grad_by_freq:
        return "scale_grad_by_freq=True divides gradients by counts of ids, which a row optimizer does not do"
    return _weight_problem(module) or _tie(candidate, chosen, holders)


def _overridden(candidate: Candidate) -> Iterator[str]:
    """Methods of the module that torch's own class has otherwise."""
    if "forward" in vars(candidate.module):
        yield "forward"
    for kind in type(candidate.module).__mro__:
        if kind is candidate.base:
            return
        yield from (
            name
            for name, part in vars(kind).items()
            if callable(part) and hasattr(candidate.base, name) and name not in HARMLESS
        )


def _weight_problem(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is no parameter"
    if weight.dtype not in DTYPES:
        return f"its weight is {weight.dtype}; rows are {', '.join(map(str, DTYPES))}"
    if weight.device.type not in ("cpu", "cuda"):
        return f"its weight is on {weight.device}, but rows live on 'cpu' or on 'cuda'; move it there first"
    if weight.dim() != 2 or not weight.numel():
        return f"its weight is {list(weight.shape)}, which holds no rows"
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return "its weight has backward hooks, which a table does not call"
    return None


def _tie(candidate: Candidate, chosen: list[Candidate], holders: Mapping[int, list[str]]) -> str | None:
    """The same weight in several fused modules is one table; anything else that shares it would go its own way."""
    weight = candidate.module.weight
    shared = (other for other in chosen if other.module._parameters.get("weight") is weight)
    fused = {f"{path}.weight".lstrip(".") for other in shared for path in other.paths}
    others = [name for name in holders[_memory(weight)] if name not in fused]
    return f"its weight is also {', '.join(others)}, which would no longer be the same" if others else None


def _holders(model: nn.Module) -> dict[int, list[str]]:
    """The names of all parameters and buffers by the memory they are in."""
    held: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in {**module._parameters, **module._buffers}.items():
            if tensor is not None and not is_lazy(tensor) and tensor.layout == torch.strided:
                held.setdefault(_memory(tensor), []).append(f"{path}.{name}".lstrip("."))
    return held


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
