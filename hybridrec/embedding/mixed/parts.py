"""PartedGroup: groups of tables that live in different places, to row optimizers one group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hybridrec.optim.rule import RowRule, RowStep


class PartedGroup:
    """Each table is in one of the `parts`; `names` are those of all tables, in the order in which they are declared.

    It is to row optimizers what each part is: see `hybridrec.optim.group.RowGroup`. Parts step in their order.
    """

    def __init__(self, names: Iterable[str], parts: Sequence[Any]) -> None:
        self.names = tuple(names)
        self.parts = list(parts)
        self._home = {name: part for part in self.parts for name in part.stores}
        self.stores = {name: self._home[name].stores[name] for name in self.names}
        handles = {name: handle for part in self.parts for name, handle in part.handles.items()}
        self.handles = {name: handles[name] for name in self.names if name in handles}

    @property
    def prepares(self) -> bool:
        """Whether ids may be sent ahead of their lookup."""
        return any(getattr(part, "prepares", False) for part in self.parts)

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
        return set().union(*(part.waiting() for part in self.parts))

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
        """Update the tables named, in all parts, and empty their queues."""
        if any(step.nan == "raise" for step in steps.values()):
            self.refuse(steps)  # before any of them changes
        for part, mine in self._split(steps):
            part.step({name: steps[name] for name in mine})

    def check(self) -> None:
        """Raise if a lookup until now was not as it should be, and nobody was told yet; may wait for a device."""
        for part in self.parts:
            part.check()

    def settle(self) -> None:
        """Until all that was sent elsewhere has been done."""
        for part in self.parts:
            getattr(part, "settle", lambda: None)()

    def _split(self, names: Iterable[str]) -> Iterator[tuple[Any, list[str]]]:
        """The parts that have some of these tables, with their names."""
        wanted = list(names)
        for part in self.parts:
            if mine := [name for name in wanted if name in part.stores]:
                yield part, mine
