"""Tiers: rows of tiered tables come to the device before they are looked up, while the batch before computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.tiered_store import Flight, TieredStore

NO_GRAPH = (
    "a lookup of tiered tables cannot be part of a CUDA graph: which rows are on the device is decided ahead of it; "
    "run the step without a graph"
)


class _Expected(NamedTuple):
    """A block that will be looked up."""

    names: tuple[str, ...]
    starts: Sequence[int]
    there: Any  # the event after which its ids can be read


class _Admitted(NamedTuple):
    """Ids of a block that have their slots."""

    runs: list[tuple[slice, Tensor]]  # where they are in the block
    flights: tuple[Flight, ...]
    ready: Any  # the event after which the slots can be read, and the rows are there
    version: int


class Tiers:
    """What a lookup of these features does first: ids of tiered tables become slots, and their rows come there.

    Blocks that are expected are admitted one ahead, on a stream of their own: so two batches have rows in flight.
    """

    def __init__(self, stores: Mapping[str, TieredStore], features: Sequence[FeatureSpec], gate: Any) -> None:
        fed = {name: [feature.name for feature in features if feature.table == name] for name in stores}
        self._features = {name: mine for name, mine in fed.items() if mine}
        self._stores = {name: stores[name] for name in self._features}
        self._gate = gate
        self._spread = any(feature.group > 1 for feature in features)  # ids are not yet those of rows
        self._coming: Any = WeakTensorKeyDictionary()  # by the ids of a block, which may go without a lookup
        self._ahead: Any = WeakTensorKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._stores)

    def watch(self) -> None:
        """Raise if an earlier lookup needed more rows than there is room for."""
        for store in self._stores.values():
            store.watch()

    def expect(self, block: IdBlock) -> None:
        """A lookup of this very block will come, when the current stream has brought it."""
        if self._stores and not self._spread:
            self._coming[block.values] = _Expected(block.names, block.starts, self._moment(block.values))

    def slots(self, block: IdBlock, ids: Tensor) -> tuple[Tensor, tuple[Flight, ...]]:
        """The ids of a block with slots for those of tiered tables, and what keeps their rows there."""
        if ids.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(NO_GRAPH)
        self._coming.pop(block.values, None)
        found = self._ahead.pop(block.values, None)
        if found is None or found.version != _version(block.values):
            found = None
            self._ahead.clear()  # one that goes on waiting would keep all that come after it; it comes anew
            self.land()
            now = _Expected(block.names, block.starts, self._moment(block.values))
            found = self._admit(ids, block.values, now)
        values = ids.clone()
        if found.ready is not None:
            torch.cuda.current_stream(ids.device).wait_event(found.ready)
        for run, mine in found.runs:
            values[run].copy_(mine)
            if mine.is_cuda:
                mine.record_stream(torch.cuda.current_stream(ids.device))
        return values, found.flights

    def go_on(self) -> None:
        """Admit the block that is expected next, beside what was launched until now."""
        self.land()
        if not self._ahead and self._coming:
            values = next(iter(self._coming.keys()))
            self._ahead[values] = self._admit(values, values, self._coming.pop(values))

    def land(self) -> None:
        """Rows that no lookup needs any more may go."""
        for store in self._stores.values():
            store.land()

    def _admit(self, ids: Tensor, values: Tensor, block: _Expected) -> _Admitted:
        version = _version(values)
        if self._gate is None:
            return _Admitted(*self._admit_all(ids, block), None, version)
        self._gate.wait_event(block.there)
        ids.record_stream(self._gate)
        with torch.cuda.stream(self._gate):
            runs, flights = self._admit_all(ids, block)
        return _Admitted(runs, flights, self._gate.record_event(), version)

    def _admit_all(
        self, ids: Tensor, block: _Expected
    ) -> tuple[list[tuple[slice, Tensor]], tuple[Flight, ...]]:  # fmt: skip
        runs, flights = [], []
        for name, store in self._stores.items():
            at = [block.names.index(feature) for feature in self._features[name]]
            places = [slice(block.starts[i], block.starts[i + 1]) for i in at]
            slots, flight = store.admit(torch.cat([ids[place] for place in places]))
            runs += zip(places, slots.split([place.stop - place.start for place in places]), strict=True)
            flights.append(flight)
        return runs, tuple(flights)

    def _moment(self, values: Tensor) -> Any:
        return None if self._gate is None else torch.cuda.current_stream(values.device).record_event()


def _version(values: Tensor) -> int:
    return -1 if values.is_inference() else values._version
