"""Tiers: rows of tiered tables come to the device before they are looked up, while the batch before computes.

Two streams work beside each other: lookups, graphs and steps are on the current one, admissions on the gate. These keep
them apart:

- An admission begins when the ids are there and the last step that landed is done. What it moves is of no batch in
  flight, and what it writes beside that (directory, stamps, slots) no lookup reads; the next admission is behind it.
- A lookup, or the copy of slots into the memory that a graph reads, waits for the end of its admission.
- That copy is on the stream of the replays: behind the last one that reads those slots, before the next.
- Rows that the host must bring, those of files, are admitted by a thread of their class, one block after the other, on
  the gate too. A lookup waits for that thread to have launched the admission, then as for any other.
- A flight is kept from the admission until the step has taken the gradients, by the lookup, then by the queue. It lands
  on the stream of the step, behind the update: only then may its rows go.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybridrec.embedding.gpu.layout import MOST_LAYOUTS
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.row_cache.runs import Runs
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.tier_class import Flight, TierClass
    from hybridrec.embedding.gpu.tiered_store import TieredStore


class _Expected(NamedTuple):
    """A block that will be looked up."""

    names: tuple[str, ...]
    starts: Sequence[int]
    there: Any  # the event after which its ids can be read


class Admitted(NamedTuple):
    """A block whose ids of tiered tables have their slots."""

    values: Tensor  # its ids, slots in the places of those
    flights: tuple[Flight, ...]
    ready: Any  # the event after which the slots can be read, and the rows are there
    version: int


class Tiers:
    """What a lookup of these features does first: ids of tiered tables become slots, and their rows come there.

    Blocks that are expected are admitted one ahead, on a stream of their own: so two batches have rows in flight.
    """

    def __init__(self, stores: Mapping[str, TieredStore], features: Sequence[FeatureSpec], gate: Any) -> None:
        self._fed: dict[TierClass, list[tuple[str, TieredStore]]] = {}
        for feature in features:
            if (store := stores.get(feature.table)) is not None:
                self._fed.setdefault(store.tier, []).append((feature.name, store))
        self._gate = gate
        self._spread = spread(features)
        self._coming: Any = WeakTensorKeyDictionary()  # by the ids of a block, which may go without a lookup
        self._lock = threading.Lock()  # of those: another thread brings blocks
        self._ahead: Any = WeakTensorKeyDictionary()
        self._runs: dict[Any, list[tuple[TierClass, Runs]]] = {}  # by the shape of blocks

    def __bool__(self) -> bool:
        return bool(self._fed)

    def watch(self) -> None:
        """Raise if an earlier lookup needed more rows than there is room for, or cold rows are gone."""
        for tier in self._fed:
            tier.watch()

    def expect(self, block: IdBlock) -> None:
        """A lookup of this very block will come, when the current stream has brought it."""
        if self._fed and not self._spread:
            with self._lock:
                self._coming[block.values] = self._expected(block)

    def slots(self, block: IdBlock) -> tuple[Tensor, tuple[Flight, ...]]:
        """The ids of a block with slots for those of tiered tables, and what keeps their rows there.

        For what is launched from now on; they are those of its admission ahead, if it had one.
        """
        with self._lock:
            self._coming.pop(block.values, None)
        found: Admitted | None = self._ahead.pop(block.values, None)
        if found is None or found.version != _version(block.values):
            found = None
            self._ahead.clear()  # one that goes on waiting would keep all that come after it; it comes anew
            self.land()
            found = self._admit(block.values, self._expected(block))
        if found.ready is not None:
            stream = torch.cuda.current_stream(block.values.device)
            stream.wait_event(found.ready)
            found.values.record_stream(stream)
        for flight in found.flights:
            flight.arrive(block.values.device)
        return found.values, found.flights

    def go_on(self) -> None:
        """Admit the block that is expected next, beside what was launched until now."""
        self.land()
        if self._ahead:
            return
        with self._lock:
            values = next(iter(self._coming.keys()), None)
            block = None if values is None else self._coming.pop(values)
        if values is not None and block is not None:
            self._ahead[values] = self._admit(values, block)

    def land(self) -> None:
        """Rows that no lookup needs any more may go."""
        for tier in self._fed:
            tier.land()

    # -- admissions ---------------------------------------------------------------------------------------

    def _admit(self, values: Tensor, block: _Expected) -> Admitted:
        version = _version(values)
        if self._gate is None:
            return Admitted(*self._admit_all(values, block), None, version)
        self._gate.wait_event(block.there)
        values.record_stream(self._gate)
        with torch.cuda.stream(self._gate):
            slots, flights = self._admit_all(values, block)
        return Admitted(slots, flights, self._gate.record_event(), version)

    def _admit_all(self, values: Tensor, block: _Expected) -> tuple[Tensor, tuple[Flight, ...]]:
        runs = self._runs_of(block)
        written = sum(each.count for _, each in runs) == len(values)
        out = torch.empty_like(values) if written else values.clone()
        return out, tuple(tier.admit(values, each, out) for tier, each in runs)

    def _runs_of(self, block: _Expected) -> list[tuple[TierClass, Runs]]:
        """Which ids of blocks of this shape are of which class; made on the stream that reads it."""
        kind = block.names, tuple(block.starts)
        if kind not in self._runs:
            if len(self._runs) >= MOST_LAYOUTS:  # ragged blocks are all different
                self._runs.clear()
            self._runs[kind] = [(tier, self._make(tier, fed, block)) for tier, fed in self._fed.items()]
        return self._runs[kind]

    def _make(self, tier: TierClass, fed: list[tuple[str, TieredStore]], block: _Expected) -> Runs:
        places = [(block.names.index(name), store) for name, store in fed]
        runs = [store.run(block.starts[at], block.starts[at + 1] - block.starts[at]) for at, store in places]
        return Runs.make(runs, tier.device, tier.cache.sizes.ids)

    def _expected(self, block: IdBlock) -> _Expected:
        there = None if self._gate is None else torch.cuda.current_stream(block.values.device).record_event()
        return _Expected(block.names, block.starts, there)


def spread(features: Sequence[FeatureSpec]) -> bool:
    """Whether ids of these features are not those of the batch, but several for each of them."""
    return any(feature.group > 1 for feature in features)


def _version(values: Tensor) -> int:
    return -1 if values.is_inference() else values._version
