"""RowGroup: what a row optimizer asks of the tables that it updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from hybridrec.optim.rule import RowRule, RowStep

if TYPE_CHECKING:
    from hybridrec.embedding.store import Store
    from hybridrec.optim.handle import RowHandle


class RowGroup(Protocol):
    """Tables that are updated together, and their queue of gradients."""

    @property
    def handles(self) -> Mapping[str, RowHandle]:
        """One for each table that can be trained."""
        ...

    @property
    def stores(self) -> Mapping[str, Store]:
        """The rows of each table."""
        ...

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        """Make room for the rule's state; ValueError where another living owner has the table."""
        ...

    def release(self, name: str, owner: object) -> None:
        """Undo the owner's claim and drop the state; nothing where the owner has none."""
        ...

    def pending(self, name: str) -> int:
        """How many backward calls have queued gradients for the table."""
        ...

    def waiting(self) -> set[str]:
        """The tables that have queued gradients."""
        ...

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite."""
        ...

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None) -> float:
        """The L2 norm of the summed row gradients of these tables together, each times its step's grad_scale."""
        ...

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise FloatingPointError if a step with nan="raise" meets a row whose gradient is not finite."""
        ...

    def check(self) -> None:
        """Raise if a lookup until now was not as it should be, and nobody was told yet; may wait for a device."""
        ...

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Update the tables named, in one pass, and empty their queues."""
        ...

    def discard(self, names: Iterable[str]) -> None:
        """Empty the queues of these tables."""
        ...
