"""GradientQueue: tables that are updated together, who updates them, and the gradients that wait for a step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from hybridrec.embedding.store import Store
from hybridrec.optim.handle import RowHandle
from hybridrec.optim.rule import RowRule, RowStep

Held = TypeVar("Held", bound=Store)


class FeatureSpec(NamedTuple):
    """A feature of a lookup: the table that it reads, how its bags are pooled, and the slots of each id.

    `padding` is an id whose row is read like any other, but takes no gradient from this feature.
    """

    name: str
    table: str
    combiner: str
    group: int = 1
    padding: int | None = None


@dataclass(eq=False)
class QueuedCall:
    """The gradients of one backward call: what the kernels read, the tensors it points into, and whom it concerns."""

    work: Any
    tensors: tuple[Any, ...]
    left: set[str] = field(default_factory=set)  # tables whose rows have not taken their step
    lent: list[tuple[Tensor, int]] = field(default_factory=list)  # what others could change, and its version

    def check(self) -> None:
        """Refuse gradients that are no longer those of the backward call."""
        if any(part._version != version for part, version in self.lent):
            raise RuntimeError(
                "a gradient, or the ids or weights that it belongs to, was changed in place after backward() and "
                "before step(); hand over a clone of it"
            )


class GradientQueue(Generic[Held]):
    """Tables with one queue of gradients; lookups fill it in their backward, a step empties it.

    Row optimizers claim the tables; see `hybridrec.optim.group.RowGroup` for what they ask.
    """

    def __init__(self, stores: Mapping[str, Held], trainable: set[str]) -> None:
        self.stores: dict[str, Held] = dict(stores)
        self.names = tuple(stores)
        self.handles = {name: RowHandle(self, name) for name in self.names if name in trainable}  # pyright: ignore
        self._owners: dict[str, weakref.ref[Any]] = {}
        self._queue: list[QueuedCall] = []
        self._lock = threading.Lock()  # of the queue: backward calls of other threads come during a step

    # -- who updates what ---------------------------------------------------------------------------------

    def claim(self, name: str, rule: RowRule, owner: object) -> None:
        """Make room for the rule's state; ValueError where another living optimizer has the table."""
        taken = self._owner(name)
        if taken is not None and taken is not owner:
            raise ValueError(
                f"table {name!r} is updated by another {type(taken).__name__}; call its release() first, or give this "
                "one other tables="
            )
        self._owners[name] = weakref.ref(owner)
        self.stores[name].attach(rule)

    def release(self, name: str, owner: object) -> None:
        """Undo the owner's claim and drop the state; nothing where the owner has none."""
        if self._owner(name) is owner:
            del self._owners[name]
            self.stores[name].detach()

    def _owner(self, name: str) -> object | None:
        reference = self._owners.get(name)
        return None if reference is None else reference()

    # -- what groups do with it: see `hybridrec.optim.group.RowGroup` ---------------------------------------

    def finite(self, names: Iterable[str]) -> bool:
        raise NotImplementedError

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        raise NotImplementedError

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Raise if a lookup until now was not as it should be, and nobody was told yet; may wait for a device.

        Here nothing is to be told: ids are looked at before their rows are.
        """

    # -- the queue ----------------------------------------------------------------------------------------

    def queue(self, work: Any, tensors: tuple[Any, ...], tables: Iterable[str], lent: Iterable[Tensor] = ()) -> None:
        """Keep the gradients of a backward call until the step; `lent` must not change until then."""
        trained = {name for name in tables if name in self.handles}
        if orphans := [name for name in trained if self._owner(name) is None]:
            raise RuntimeError(
                f"a gradient has come for table {min(orphans)!r}, but no row optimizer updates it; make one, such as "
                "hybridrec.optim.Adagrad(model, lr=0.05), or declare the table with trainable=False"
            )
        if trained:  # a view has the version of all that views the same memory, and so tells nothing
            versions = [(part, part._version) for part in lent if not (part._is_view() or part.is_inference())]
            with self._lock:
                self._queue.append(QueuedCall(work, tensors, trained, versions))

    def pending(self, name: str) -> int:
        """How many backward calls have queued gradients for the table."""
        return sum(name in call.left for call in self._queue)

    def waiting(self) -> set[str]:
        """The tables that have queued gradients."""
        return set().union(*(call.left for call in self._queue))

    def discard(self, names: Iterable[str]) -> None:
        """Empty the queues of these tables."""
        self._let_go(self._queue, set(names))

    def _let_go(self, calls: Iterable[QueuedCall], tables: set[str]) -> None:
        with self._lock:
            for call in calls:
                call.left -= tables
            self._queue = [call for call in self._queue if call.left]
