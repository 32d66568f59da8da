"""TableGroup: tables that are updated together, and the queue of their gradients."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.native_store import NativeStore, native_step
from hybridrec.ops.pooled_lookup.op import Lookup
from hybridrec.optim.handle import RowHandle
from hybridrec.optim.rule import RowRule, RowStep


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
    """The gradients of one backward call: what native code reads, the tensors it points into, and whom it concerns."""

    native: _native.Pending
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


class TableGroup:
    """Tables with one queue of gradients: lookups fill it in their backward, `step` empties it in one fused pass.

    Row optimizers claim the tables; see `hybridrec.optim.group.RowGroup` for what they ask.
    """

    def __init__(self, stores: Mapping[str, Any], trainable: set[str]) -> None:
        self.stores: dict[str, NativeStore] = dict(stores)
        self.names = tuple(stores)
        self.natives = [store.native for store in self.stores.values()]
        self.handles = {name: RowHandle(self, name) for name in self.names if name in trainable}  # pyright: ignore
        self._owners: dict[str, weakref.ref[Any]] = {}
        self._queue: list[QueuedCall] = []
        self._lock = threading.Lock()  # of the queue: backward calls of other threads come during a step
        self._awaited: dict[str, int] = {}  # dynamic tables: the clock at which rows were pinned for a gradient
        self._update = _native.RowUpdate(self.natives)

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> Lookup:
        """What looks up these features, and queues their gradients here; `remedy` is advice for an id out of range."""
        return Lookup(self, features, remedy)

    def __reduce__(self) -> tuple:
        return TableGroup, (self.stores, set(self.handles))  # a copy has the rows, but no gradients and no optimizer

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

    # -- the queue ----------------------------------------------------------------------------------------

    def looked_up(self, tables: Iterable[str], gradients: bool) -> None:
        """A training lookup of dynamic tables is done: rows stay for the step if a gradient may come, or may go."""
        for name in tables:
            clock = self.stores[name].clock
            if gradients and name in self.handles:
                self._awaited[name] = clock
            elif self._awaited.get(name) != clock:
                self.stores[name].advance()

    def queue(
        self, native: _native.Pending, tensors: tuple[Any, ...], tables: Iterable[str], lent: Iterable[Tensor] = ()
    ) -> None:
        """Keep the gradients of a backward call until the step; `lent` must not change until then."""
        trained = {name for name in tables if name in self.handles}
        for name in sorted(trained):
            if self._owner(name) is None:
                raise RuntimeError(
                    f"a gradient has come for table {name!r}, but no row optimizer updates it; make one, such as "
                    "hybridrec.optim.Adagrad(model, lr=0.05), or declare the table with trainable=False"
                )
        if trained:  # a view has the version of all that views the same memory, and so tells nothing
            versions = [(part, part._version) for part in lent if not (part._is_view() or part.is_inference())]
            with self._lock:
                self._queue.append(QueuedCall(native, tensors, trained, versions))

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

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite."""
        wanted = set(names)
        calls = [call.native for call in self._calls(wanted)]
        return self._update.finite(calls, [name in wanted for name in self.names])

    # -- the step -----------------------------------------------------------------------------------------

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        """The L2 norm of the summed row gradients of these tables together, each times its step's grad_scale."""
        plain = RowStep(rule=RowRule("sgd"), lr=0.0, step=1)
        scales = {name: steps[name].grad_scale if steps else 1.0 for name in names}
        results = self._apply(self._calls(set(scales)), dict.fromkeys(scales, plain), norm_only=True)
        if any(results[name][1] for name in scales):
            return math.inf
        return math.sqrt(sum(results[name][2] * scale**2 for name, scale in scales.items()))

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Update the tables named, in one pass over all of them, and empty their queues."""
        self.refuse(steps)
        calls = self._calls(set(steps))
        for name, (_, not_finite, _) in self._apply(calls, steps, norm_only=False).items():
            self.stores[name].stepped(not_finite)
        self._let_go(calls, set(steps))

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise if a step that says so would have to leave out rows; changes nothing."""
        strict = {name: step for name, step in steps.items() if step.nan == "raise"}
        results = self._apply(self._calls(set(strict)), strict, norm_only=True) if strict else {}
        for name, (_, not_finite, _) in results.items():
            if not_finite:
                raise FloatingPointError(
                    f"table {name!r} has gradients that are not finite, of {not_finite} rows; nothing was changed. "
                    "Find their cause, or leave such rows out with nan='skip'"
                )

    def _apply(
        self, calls: list[QueuedCall], steps: Mapping[str, RowStep], norm_only: bool
    ) -> dict[str, tuple[int, int, float]]:
        _native.set_threads(torch.get_num_threads())
        made = {key: native_step(step) for key, step in {id(step): step for step in steps.values()}.items()}
        native = [made[id(steps[name])] if name in steps else None for name in self.names]
        results = self._update.apply([call.native for call in calls], native, norm_only)
        return {name: result for name, result in zip(self.names, results, strict=True) if name in steps}

    def _calls(self, tables: set[str]) -> list[QueuedCall]:
        calls = [call for call in self._queue if call.left & tables]
        for call in calls:
            call.check()
            if len(call.left) < len(self.handles):
                call.native.wanted = [name in call.left for name in self.names]
        return calls
