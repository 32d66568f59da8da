"""MixedGroup: tables on a card and tables on the host, updated together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.mixed.lookup import MixedLookup
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.optim.rule import RowRule, RowStep

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.group import DeviceGroup


class MixedGroup:
    """A group on a card, if there is one, and a group on the host; each table is in one of them.

    It is to row optimizers what they are: see `hybridrec.optim.group.RowGroup`. `names` are those of all tables, in the
    order in which they are declared; vectors are wanted on `device`.
    """

    def __init__(self, names: Iterable[str], there: DeviceGroup | None, here: TableGroup, device: torch.device) -> None:
        self.names = tuple(names)
        self.there, self.here, self.device = there, here, device
        self._parts: list[Any] = [here] if there is None else [there, here]  # the card is to begin before the host
        self._home = {name: part for part in self._parts for name in part.stores}
        self.stores = {name: self._home[name].stores[name] for name in self.names}
        handles = {name: handle for part in self._parts for name, handle in part.handles.items()}
        self.handles = {name: handles[name] for name in self.names if name in handles}

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> MixedLookup:
        """What looks up these features, and queues their gradients in the groups of their tables."""
        return MixedLookup(self, features)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient: on the card, wherever they live."""
        store, device = self.stores[name], self.device
        if name in self.here.stores:
            return lambda ids: store.lookup(ids.cpu()).to(device)
        return store.lookup

    # -- who updates what ---------------------------------------------------------------------------------

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        """Make room for the rule's state; ValueError where another living optimizer has the table."""
        self._home[name].claim(name, rule, owner)

    def release(self, name: str, owner: object) -> None:
        """Undo the owner's claim and drop the state; nothing where the owner has none."""
        self._home[name].release(name, owner)

    # -- the queues ---------------------------------------------------------------------------------------

    def pending(self, name: str) -> int:
        """How many backward calls have queued gradients for the table."""
        return self._home[name].pending(name)

    def waiting(self) -> set[str]:
        """The tables that have queued gradients."""
        return set().union(*(part.waiting() for part in self._parts))

    def discard(self, names: Iterable[str]) -> None:
        """Empty the queues of these tables."""
        for part, mine in self._split(names):
            part.discard(mine)

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite."""
        return all(part.finite(mine) for part, mine in self._split(names))

    # -- the step -----------------------------------------------------------------------------------------

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        """The L2 norm of the summed row gradients of these tables together, each times its step's grad_scale."""
        return math.hypot(*(part.norm(mine, steps) for part, mine in self._split(names)))

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise if a step that says so would have to leave out rows; changes nothing."""
        for part, mine in self._split(steps):
            part.refuse({name: steps[name] for name in mine})

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Update the tables named, on the card and meanwhile on the host, and empty their queues."""
        if any(step.nan == "raise" for step in steps.values()):
            self.refuse(steps)  # before either of them changes
        for part, mine in self._split(steps):
            part.step({name: steps[name] for name in mine})

    def _split(self, names: Iterable[str]) -> Iterator[tuple[Any, list[str]]]:
        """The groups that have some of these tables, with their names."""
        wanted = list(names)
        for part in self._parts:
            if mine := [name for name in wanted if name in part.stores]:
                yield part, mine
