"""The state of a torch optimizer, by the names of parameters in place of their positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hybridrec.train.checkpoint.homes import plain
from hybridrec.train.checkpoint.names import Renamer


def to_tree(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """Its groups and its state, the latter by parameter.

    >>> top = nn.Linear(1, 1)
    >>> to_tree(torch.optim.SGD(top.parameters(), lr=0.5), top)["groups"][0]["params"]
    ['weight', 'bias']
    """
    saved = optimizer.state_dict()
    names = _names(optimizer, model)
    groups = [{**group, "params": [names[place] for place in group["params"]]} for group in saved["param_groups"]]
    state = {names[place]: parts for place, parts in saved["state"].items()}
    rest = {name: part for name, part in saved.items() if name not in ("param_groups", "state")}
    return {"kind": type(optimizer).__name__, "groups": groups, "state": state, "rest": rest}


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[int, str]:
    """The name of each parameter by its place in the optimizer; those that the model lacks go by their place."""
    known = {id(parameter): plain(name) for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {place: known.get(id(parameter), f"#{place}") for place, parameter in enumerate(parameters)}


class DenseLoad:
    """A saved optimizer, compared with one of a model: what does not fit, and how to load the rest."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        saved: Mapping[str, Any],
        shapes: Mapping[str, list[int]],
        new_name: Renamer,
    ) -> None:
        """`shapes` are those of the saved parameters, by their new names."""
        self.optimizer = optimizer
        self.names = _names(optimizer, model)
        self.saved = saved
        self.state = {new_name(name): parts for name, parts in saved["state"].items()}
        self.groups = [[new_name(name) for name in group["params"]] for group in saved["groups"]]
        self.misfit = self._misfit()
        self.losses: dict[str, str] = {} if self.misfit else self._losses(shapes)

    def _misfit(self) -> str | None:
        kind, own = self.saved.get("kind"), type(self.optimizer).__name__
        if kind != own:
            return f"it was a {kind}, and is a {own}; make a {kind}"
        count = len(self.optimizer.param_groups)
        if len(self.groups) != count:
            return f"it had {len(self.groups)} parameter groups, and has {count}; make as many"
        return None

    def _losses(self, shapes: Mapping[str, list[int]]) -> dict[str, str]:
        known = {name for group in self.groups for name in group}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        found = {}
        for place, name in self.names.items():
            size = list(parameters[place].shape)
            if name not in known:
                found[name] = "it was not among the optimizer's parameters, and starts anew"
            elif shapes.get(name, size) != size:
                found[name] = f"its shape was {shapes[name]} and is {size}, so it starts anew"
        gone = known.difference(self.names.values())
        return found | dict.fromkeys(sorted(gone), "the optimizer no longer has this parameter")

    def apply(self) -> None:
        """Load what fits."""
        now = self.optimizer.state_dict()
        groups = [
            {**saved, "params": group["params"]}
            for saved, group in zip(self.saved["groups"], now["param_groups"], strict=True)
        ]
        state = {
            place: self.state[name]
            for place, name in self.names.items()
            if name in self.state and name not in self.losses
        }
        self.optimizer.load_state_dict({**self.saved["rest"], "param_groups": groups, "state": _copied(state)})


def _copied(tree: Any) -> Any:
    """Tensors of their own: torch keeps those it is given, which lie in the mapped file."""
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {name: _copied(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_copied(part) for part in tree)
    return tree
