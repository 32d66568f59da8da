"""DeviceGroup: tables on a GPU that are updated together."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.columns import Columns
from hybridrec.embedding.gpu.dynamic import DynamicTables
from hybridrec.embedding.gpu.ground import Ground
from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.layout import Layout, TableFacts
from hybridrec.embedding.gpu.lookup import DeviceLookup, Looked, Slotted
from hybridrec.embedding.gpu.replay import Replay
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.gpu.streams import stream_apart
from hybridrec.embedding.gpu.tier_class import TierClass, classes_of
from hybridrec.embedding.gpu.tiered_store import TieredStore
from hybridrec.embedding.queue import FeatureSpec, GradientQueue, QueuedCall
from hybridrec.ops.row_groups.reference import sum_by_row
from hybridrec.ops.row_groups.triton import RowGroups, Sizes, group_rows
from hybridrec.ops.row_update.numbers import of
from hybridrec.ops.row_update.triton import Drawn, holding, step_keys, step_numbers, update_groups, update_listed
from hybridrec.ops.zeros_again import zeros_again
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.types import IdBlock


class DeviceGroup(GradientQueue[DeviceStore]):
    """Tables on one device with one queue of gradients."""

    leaves_room = True  # whether its lookups can leave columns behind the vectors

    def __init__(self, stores: Mapping[str, Any], trainable: set[str], sizes: Sizes = Sizes()) -> None:  # noqa: B008
        super().__init__(stores, trainable)
        self.sizes = sizes
        self.device = next(iter(self.stores.values())).device
        dynamic = any(isinstance(store, DeviceHashStore) for store in self.stores.values())
        self.dynamic = DynamicTables(self.stores, self.device) if dynamic else None
        self.tiered = {name: store for name, store in self.stores.items() if isinstance(store, TieredStore)}
        for each in classes_of(store for store in self.tiered.values() if store.fresh):
            TierClass(each)
        self.tiers = list(dict.fromkeys(store.tier for store in self.tiered.values()))
        self.gate = self._gate() if self.device.type == "cuda" and self.tiered else None
        self.ground = Ground(self.stores, self.device)
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._partial = torch.zeros(0, device=self.device)  # sums of rows with many occurrences, between the launches
        self._lookups: weakref.WeakSet[DeviceLookup] = weakref.WeakSet()
        self._lines: list[Any] = [None, None]  # the numbers and keys that are there
        count = len(self.names)
        self._numbers_there = torch.zeros(count, of.NUMBERS, device=self.device)
        self._keys_there = torch.zeros(count, of.KEYS, dtype=torch.int64, device=self.device)
        self._keys = self._find_keys()
        self._held = holding(key for key in self._keys if key)
        self._addresses_there = torch.zeros(count, of.ADDRESSES, dtype=torch.int64, device=self.device)
        self._moves = -1  # of the states of all tables, when their addresses were taken
        self._outcome = torch.zeros(1 + count, device=self.device)  # sum of squares, and rows left out of each table
        for number, store in enumerate(self.stores.values()):
            store.left_out = self._outcome[1 + number]

    def _gate(self) -> Any:
        """The stream of admissions: no capture may be on it where a thread sends them."""
        return (stream_apart if any(tier.brought for tier in self.tiers) else torch.cuda.Stream)(self.device)

    def lookup_fn(
        self,
        features: tuple[FeatureSpec, ...],
        remedy: str | None = None,
        columns: Columns | None = None,
        room: int | None = None,
    ) -> DeviceLookup:
        """What looks up these features, and queues their gradients here.

        Vectors are in these `columns` of an output, if given; `room` is that of the collection.
        """
        made = DeviceLookup(self, features, remedy, columns, room)
        self._lookups.add(made)
        return made

    def __reduce__(self) -> tuple:
        return DeviceGroup, (self.stores, set(self.handles), self.sizes)

    def facts(self, name: str) -> TableFacts:
        """What kernels must know of a table: of a share, ids of lookups are rows of it."""
        store = self.stores[name]
        hashes = store.table.out_of_range == "hash" and name not in self.tiered
        hashed = hashes and store.reach == store.table.fixed_rows
        of_rows = store.there.data_ptr(), store.reach, self.ground.bases[name]
        return TableFacts(self.names.index(name), *of_rows, store.dim, store.dtype, hashed)

    # -- from lookup to queue -----------------------------------------------------------------------------

    def moment(self) -> Any:
        """What is done when all that was launched until now is."""
        return None if self._side is None else torch.cuda.current_stream(self.device).record_event()

    def prepare(self, looked: Looked, after: Any = None, read: Sequence[Tensor] = ()) -> None:
        """Group the ids of a lookup by row, beside whatever computes meanwhile, from a moment on or from now.

        What is `read` beside what every lookup has may be gone before that is done.
        """
        if self._side is None:
            looked.groups = self._group(looked)
            return
        self._side.wait_event(after or self.moment())
        lines = looked.layout.features  # with which all of a layout was sent, in one piece
        for tensor in (looked.block.values, looked.weights, looked.bag_of, looked.scales, lines, *read):
            if tensor is not None:
                tensor.record_stream(self._side)  # their memory is not to be used anew before it is read
        with torch.cuda.stream(self._side):
            looked.groups = self._group(looked)
        looked.ready = self._side.record_event()

    def _group(self, looked: Looked) -> RowGroups:
        ids, layout, ground = looked.block.values, looked.layout, self.ground
        of_bags = looked.bag_of, looked.scales, looked.weights
        with zeros_again(*ground.zeros()):
            return group_rows(ids, layout, ground.places, ground.bases_there, *of_bags)

    def take(self, looked: Looked, replayed: Sequence[Slotted] = ()) -> None:
        """Keep the gradients of a lookup until the step, and with them what keeps its rows on the device.

        One of a capture has none of its own: it is given what was `replayed`, from `slots`.
        """
        if replayed:
            eras = {table: era for each in replayed for table, era in each.eras.items()}
            looked = replace(looked, eras=eras)  # what was captured stays as it is
        flights = tuple(flight for each in replayed for flight in each.flights)
        pooled = [f.table for f in looked.features if f.combiner != "none"] if looked.flat is not None else []
        unpooled = [f for f in looked.features if f.combiner == "none"]
        fed = [f.table for f, grad in zip(unpooled, looked.sequences, strict=True) if grad is not None]
        read = looked.flat, *looked.sequences, looked.block.values, looked.weights, looked.ids
        lent = [part for part in read if part is not None]
        self.queue(looked, flights, {*pooled, *fed}, lent)

    # -- as part of a CUDA graph --------------------------------------------------------------------------

    def withdraw(self) -> list[Looked]:
        """At the end of a capture: the lookups whose gradients it computes; `take` each after every replay."""
        if self._side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._side)
        for lookup in self._lookups:
            lookup.report()
        with self._lock:
            found, self._queue = [call.work for call in self._queue], []
        for looked in found:
            looked.ready, looked.update = None, Replay()
        return found

    def rejoin(self) -> None:
        """Where a capture is left by an error: its streams are one again, else torch keeps its memory for good."""
        if self._side is None:
            return
        with torch.cuda.stream(self._side):
            apart = torch.cuda.is_current_stream_capturing()
        if apart:
            torch.cuda.current_stream(self.device).wait_stream(self._side)

    def watch(self) -> None:
        """Raise if a replay that is done had ids outside a table, or too many rows."""
        for tier in self.tiers:
            tier.watch()
        if self.dynamic is not None:
            self.dynamic.watch()
        for lookup in self._lookups:
            lookup.refuse()

    def check(self) -> None:
        for tier in self.tiers:
            tier.check()
        for lookup in self._lookups:
            lookup.check()
        if self.dynamic is not None:
            self.dynamic.check()

    def fix(self, block: IdBlock) -> None:
        """Before a capture: lookups of this very block read slots of tables that need them from memory that stays."""
        for lookup in self._lookups:
            lookup.fix(block)

    def slots(self, fixed: IdBlock, block: IdBlock) -> list[tuple[Tensor, Slotted]]:
        """Before a replay: the memory from `fix`, each with what belongs there for a block, laid out as that is.

        The latter goes to `take` after the replay, and keeps rows where they are.
        """
        if not (self.tiers or self.dynamic):
            return []
        return [each for lookup in self._lookups if (each := lookup.slots(fixed, block)) is not None]

    def go_on(self) -> None:
        """After a replay: rows of the block that is expected next come while it computes."""
        for lookup in self._lookups if self.tiers else ():
            lookup.tiers.go_on()

    # -- the step -----------------------------------------------------------------------------------------

    def step(self, steps: Mapping[str, RowStep]) -> None:
        """Update the tables named, and empty their queues."""
        self.refuse(steps)
        calls = self._calls(set(steps))
        self.settle(steps)
        self._run(calls, steps, self._outcome, norm=False)
        self._advance(steps)
        self._let_go(calls, set(steps))
        del calls  # and with them their flights
        for tier in self.tiers:
            tier.land()

    def _advance(self, names: Iterable[str]) -> None:
        """A training step of these tables is over."""
        for name in names:
            if self.dynamic is None or name not in self.dynamic.stores:
                self.stores[name].advance()
        if self.dynamic is not None:
            self.dynamic.advance(names)

    def settle(self, names: Iterable[str] | None = None) -> None:
        """Captures of these tables, or of all, must not need the device any more: its rows are about to change.

        A step does this by itself; who replays a CUDA graph of a step, or records one, calls it before.
        """
        for name in self.names if names is None else names:
            self.stores[name].settle()

    def norm(self, names: Iterable[str], steps: Mapping[str, RowStep] | None = None) -> float:
        """The L2 norm of the summed row gradients of these tables together, each times its step's grad_scale."""
        scales = {name: steps[name].grad_scale if steps else 1.0 for name in names}
        sgd = RowRule("sgd")
        plain = {name: RowStep(rule=sgd, lr=0.0, step=1, grad_scale=scale) for name, scale in scales.items()}
        left_out, squares = self._measured(plain)
        return math.inf if any(left_out.values()) else math.sqrt(squares)

    def finite(self, names: Iterable[str]) -> bool:
        """Whether all queued gradients of these tables are finite."""
        calls = self._calls(set(names))
        parts = [part for call in calls for part in (call.work.flat, *call.work.sequences) if part is not None]
        return all(bool(part.isfinite().all()) for part in parts)

    def refuse(self, steps: Mapping[str, RowStep]) -> None:
        """Raise if a step that says so would have to leave out rows; changes nothing."""
        strict = {name: step for name, step in steps.items() if step.nan == "raise"}
        left_out = self._measured(strict)[0] if strict else {}
        for name, rows in left_out.items():
            if rows:
                raise FloatingPointError(
                    f"table {name!r} has gradients that are not finite, of {int(rows)} rows; nothing was changed. "
                    "Find their cause, or leave such rows out with nan='skip'"
                )

    def _measured(self, steps: Mapping[str, RowStep]) -> tuple[dict[str, float], float]:
        """Rows with gradients that are not finite, by table, and the sum of the squares of all others."""
        outcome = torch.zeros_like(self._outcome)
        self._run(self._calls(set(steps)), steps, outcome, norm=True)
        squares, *rows = outcome.tolist()
        by_name = dict(zip(self.names, rows, strict=True))
        return {name: by_name[name] for name in steps}, squares

    def _run(self, calls: list[QueuedCall], steps: Mapping[str, RowStep], outcome: Tensor, norm: bool) -> None:
        if not calls:
            return
        numbers, addresses = self._numbers(steps), self._addresses()
        to = addresses, *numbers, outcome, norm, self._held
        shared = set(steps)
        for call in calls:
            others = set().union(*(other.left for other in calls if other is not call))
            kinds = self._fused_kinds(call, steps) if call.left.isdisjoint(others) else None
            if kinds is not None:
                self._run_groups(call.work, kinds, to, norm)
                shared -= call.left
        for name in sorted(shared):
            if of_name := [call.work for call in calls if name in call.left]:
                facts = self.facts(name)
                rows, grads = self._summed(of_name, name)
                if norm and torch.are_deterministic_algorithms_enabled():
                    _note_in_order(grads * steps[name].grad_scale, facts.number, outcome)
                else:
                    update_listed(rows, grads, facts.number, facts.dtype, steps[name].rule.kind, *to)

    def _run_groups(self, looked: Looked, kinds: list[str], to: tuple[Any, ...], norm: bool) -> None:
        """The update by a lookup whose tables no other one has."""
        if looked.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(looked.ready)
        launches = partial(self._launch, looked, kinds, self._sums(looked.layout), *to)
        if looked.update is None or norm:
            launches()
        else:
            looked.update.run(tuple(kinds), launches)

    def _launch(self, looked: Looked, kinds: list[str], sums: Tensor, *to: Any) -> None:
        """The update of each class of a lookup's rows."""
        assert looked.groups is not None, "a queued lookup was prepared"
        grad = looked.gradient()
        with zeros_again(sums):
            for number, kind in enumerate(kinds):
                update_groups(looked.groups, grad, sums, number, kind, *to)

    def _sums(self, layout: Layout) -> Tensor:
        """Zeros for the sums of rows with many occurrences, of a class at a time; kept: kernels leave zeros behind."""
        needed = max(map(layout.sums, range(len(layout.classes))), default=0)
        if len(self._partial) < needed:
            self._partial = torch.zeros(needed, device=self.device)
        return self._partial

    def _numbers(self, steps: Mapping[str, RowStep]) -> tuple[Tensor, Tensor]:
        """The numbers and keys of these steps, in memory that stays; nothing is sent where they are as they were."""
        keys = self._find_keys() if self._held >= of.LISTED else self._keys
        lines = step_numbers(self.names, steps), step_keys(keys, self.names, steps) if any(keys) else None
        there = self._numbers_there, self._keys_there
        for place, (values, to) in enumerate(zip(lines, there, strict=True)):
            if values != self._lines[place]:
                self._send(values, to)
                self._lines[place] = values
        return there

    def _find_keys(self) -> list[Drawn | None]:
        """What the rounding of rows is drawn by, where they are halves."""
        return [None if store.dtype == torch.float32 else store.drawn for store in self.stores.values()]

    def _send(self, values: Any, to: Tensor) -> None:
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the numbers of a step (lr, and for half rows its count) are others than those of the last one, "
                "and a graph that is being captured would repeat them for ever; take the step outside of it"
            )
        sent = torch.tensor(values, dtype=to.dtype, pin_memory=to.is_cuda)
        to.copy_(sent, non_blocking=True)  # the memory of `sent` is used anew only when it has been read

    def _fused_kinds(self, call: QueuedCall, steps: Mapping[str, RowStep]) -> list[str] | None:
        """The rule of each class of a call, if all of it takes part and no class has two; else None."""
        looked: Looked = call.work
        whole = call.left.issuperset(f.table for f in looked.features) and steps.keys() >= call.left
        if not whole or torch.are_deterministic_algorithms_enabled():
            return None
        if looked.flat is None or any(part is None for part in looked.sequences):
            return None
        kinds = []
        for each in looked.layout.classes:
            tables = {looked.features[f].table for f in looked.layout.order[each.first : each.last]}
            rules = {steps[table].rule.kind for table in tables}
            if len(rules) > 1:
                return None
            kinds += rules
        return kinds

    def _summed(self, calls: list[Looked], name: str) -> tuple[Tensor, Tensor]:
        """The rows of a table that have gradients in these calls, int64 [U], and the gradients' sums [U, dim]."""
        parts = [part for looked in calls for part in looked.occurrences(name)]
        if not parts:  # rows that gradients have come for lie on other ranks
            none = torch.zeros(0, dtype=torch.int64, device=self.device)
            return none, torch.zeros(0, self.stores[name].dim, device=self.device)
        return sum_by_row(torch.cat([rows for rows, _ in parts]), torch.cat([grads for _, grads in parts]))

    def _addresses(self) -> Tensor:
        """Where kernels find each table's rows and state, int64 [tables, 3]."""
        moves = sum(store.moves for store in self.stores.values())
        if moves != self._moves:
            lines = []
            for store in self.stores.values():
                state = [values.data_ptr() for values in store.states.values()]
                lines.append((store.there.data_ptr(), *state, *[0] * (2 - len(state))))
            self._moves = moves
            self._addresses_there.copy_(torch.tensor(lines))  # in place: replays read it
        return self._addresses_there

    def _calls(self, tables: set[str]) -> list[QueuedCall]:
        calls = [call for call in self._queue if call.left & tables]
        for call in calls:
            call.check()
            if self.dynamic is not None and (values := self.dynamic.without_gone(call.work, call.left)) is not None:
                call.work.look_for(values)
                call.work.eras, call.work.update = self.dynamic.now(call.work.eras), None
                self.prepare(call.work)
        return calls


def _note_in_order(grads: Tensor, number: int, outcome: Tensor) -> None:
    """What kernels note of the summed gradients [U, dim] of a table, added up in an order that does not vary."""
    finite = grads.isfinite().all(1, keepdim=True)
    outcome[0] += torch.where(finite, grads, 0).square().sum()
    outcome[1 + number] += (~finite).sum()
