"""Dynamic tables of a group on a GPU: ids of a lookup become slots, and memory is made for rows before they come.

The host never waits to know how many rows there are. It knows how many there were some lookups ago, and how many ids
have come since: no more rows than that can be there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec.embedding.gpu.hash_store import DeviceHashStore
from hybridrec.embedding.gpu.homes import Homes
from hybridrec.embedding.gpu.kept import kept_rows
from hybridrec.embedding.gpu.layout import MOST_LAYOUTS, Layout
from hybridrec.embedding.gpu.news import News, Told
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.hash_index.spans import Spans, of_runs
from hybridrec.ops.hash_rows.lines import of
from hybridrec.ops.hash_rows.triton_rows import HashRows
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.group import DeviceGroup
    from hybridrec.embedding.gpu.lookup import Looked

UNPINNED = -1  # no age of slots: their rows may go at any time
LATE = ": an earlier lookup took new ids for zeros, and no row was lost"


class DynamicTables:
    """Those of a group, which are prepared together: a batch takes the same launches, however many there are."""

    def __init__(self, stores: Mapping[str, Any], device: torch.device) -> None:
        self.device = device
        self.numbers = {name: n for n, name in enumerate(stores) if isinstance(stores[name], DeviceHashStore)}
        self.stores: dict[str, DeviceHashStore] = {name: stores[name] for name in self.numbers}
        by_number = {self.numbers[name]: store for name, store in self.stores.items()}
        self.rows = HashRows({n: store.slots for n, store in by_number.items()}, len(stores), device)
        self.homes = Homes(by_number, len(stores), device)
        record = None if device.type == "cpu" else lambda: torch.cuda.current_stream(device).record_event()
        self._news = News(self.rows.standing, self._asks(), record)  # and ids by then
        for number, store in by_number.items():
            store.join(self.rows.part(number), lambda number=number: self._news.latest.numbers[number])
        self._awaited: dict[str, int] = {}  # the clock at which rows were pinned for a gradient
        self._ticks: dict[frozenset[str], Tensor] = {}

    # -- what the host knows ------------------------------------------------------------------------------

    def watch(self) -> None:
        """Raise if an earlier lookup found no room for new ids; nobody waits for the device to know."""
        self.ask()
        self.refuse()

    def ask(self) -> None:
        """Have the device tell how things stand after all lookups so far."""
        self._news.ask(self._asks())

    def refuse(self) -> None:
        """Raise if a lookup found no room for new ids, as far as the device has told; any thread may ask."""
        standing = self._news.latest.numbers
        for name, store in self.stores.items():
            store.refuse(standing[self.numbers[name]], LATE)

    def check(self) -> None:
        """Raise if any lookup found no room for new ids; waits for the current stream."""
        standing = self.rows.standing.tolist()
        for name, store in self.stores.items():
            store.refuse(standing[self.numbers[name]], LATE)

    def _asks(self) -> dict[str, int]:
        return {name: store.asked for name, store in self.stores.items()}

    def _most(self, name: str, told: Told[dict[str, int]]) -> int:
        """Rows that a table can have by now."""
        return told.numbers[self.numbers[name]][of.SIZE] + self.stores[name].asked - told.known[name]

    # -- a lookup -----------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # memory that is made where gradients are off is written where they are not
    def make_room(self, wanted: Mapping[str, int]) -> bool:
        """Have memory for so many new rows of each table; whether rows may have to go for them.

        Most ids have a row already. Where batches under way could fill what is there, it is worth waiting for all but
        the last to know: a table keeps the memory that it has taken.
        """
        evict, told = False, self._news.latest
        for name, ids in wanted.items():
            store, most = self.stores[name], self._most(name, told) + ids
            if not store.has_room(most):
                told = self._news.catch_up()
                most = self._most(name, told) + ids
            if not _made_room(store, most):  # on a full card it is worth waiting to know whether so many are there
                most = int(store.slots.standing[of.SIZE]) + ids
                store.make_room(most)
            store.asked += ids
            evict = evict or most > store.capacity
        return evict

    def admit(self, ids: Tensor, spans: Spans, names: Iterable[str], evict: bool) -> Tensor:
        """The slots of ids int64 for training, NO_ID where there is no row."""
        for name in names:
            self.stores[name].settle()
        return self.rows.prepare(ids, spans, evict=evict, homes=self.homes())

    def looked_up(self, names: Collection[str], trained: Collection[str]) -> None:
        """A training lookup is done: rows stay for the step where a gradient may come, else they may go."""
        self._awaited.update((name, self.stores[name].clock) for name in trained)
        self.advance(name for name in names if self._awaited.get(name) != self.stores[name].clock)

    def without_gone(self, looked: Looked, names: Collection[str], count: bool = True) -> Tensor | None:
        """The slots of a lookup, NO_ID for rows of these tables that are gone by now; None where none can be.

        Slots that are older than the last step may be those of other ids. Gradients of such count as dropped, or not.
        """
        old = [name for name, era in looked.eras.items() if name in names and self.stores[name].era != era]
        if not old:
            return None
        assert looked.ids is not None, "lookups of dynamic tables have their ids"
        block, values = looked.block, looked.block.values.clone()
        for feature in looked.features:
            if feature.table in old:
                at = block.names.index(feature.name)
                mine = slice(block.starts[at], block.starts[at + 1])
                values[mine] = self.stores[feature.table].drop_gone(looked.ids[mine], values[mine], count)
        return values

    def now(self, eras: Mapping[str, int]) -> dict[str, int]:
        """The age of slots that are right now, by table; of rows that nothing pins nobody can tell."""
        return {name: UNPINNED if era == UNPINNED else self.stores[name].era for name, era in eras.items()}

    def advance(self, names: Iterable[str]) -> None:
        """A training step of those among these tables is over."""
        over = frozenset(name for name in names if name in self.stores)
        if not over:
            return
        if over not in self._ticks:
            ticks = torch.tensor([int(n in {self.numbers[name] for name in over}) for n in range(self.rows.count)])
            self._ticks[over] = ticks.to(self.device)
        self.rows.standing[:, of.CLOCK] += self._ticks[over]
        for name in over:
            self.stores[name].advanced()


def _made_room(store: DeviceHashStore, rows: int) -> bool:
    try:
        store.make_room(rows)
    except ValueError:
        return False
    return True


class Admission:
    """What a lookup of these features does first: ids of dynamic tables become slots, and their rows come.

    It is one of `tables`, if given, beside those of the features: of some, all rows may lie elsewhere.
    """

    def __init__(self, group: DeviceGroup, features: Sequence[FeatureSpec], tables: Iterable[str] = ()) -> None:
        self._group, self._tables = group, group.dynamic
        dynamic = () if self._tables is None else self._tables.stores.keys()
        self._features = features
        self.names = sorted({*tables, *(feature.table for feature in features)}.intersection(dynamic))
        self._known: dict[Any, tuple[Spans, dict[str, int]]] = {}  # by the shape of blocks

    def __bool__(self) -> bool:
        return bool(self.names)

    def watch(self) -> None:
        """Raise if an earlier lookup found no room; nobody waits for the device to know."""
        if self.names:
            self.tables.watch()

    def ask(self) -> None:
        """Have the device tell what came of lookups."""
        if self.names:
            self.tables.ask()

    def refuse(self) -> None:
        """Raise if an earlier lookup found no room, as far as the device has told."""
        if self.names:
            self.tables.refuse()

    @property
    def tables(self) -> DynamicTables:
        assert self._tables is not None, "some features have dynamic tables"
        return self._tables

    def slots(self, block: IdBlock, values: Tensor, train: bool, gradients: bool) -> tuple[Tensor, dict[str, int]]:
        """The ids of a block, `values`, with slots for those of dynamic tables, NO_ID where there is no row.

        And the age of those slots, by table; `gradients` may come for those that are trained.
        """
        spans, wanted = self._shape(block)
        evict = self.tables.make_room(wanted) if train else False
        self._group.ground.grow()  # for rows that may come, or were loaded since the last lookup
        found = self.tables.admit(values, spans, self.names, evict) if train else self.tables.rows.find(values, spans)
        return found, self._looked_up(train, gradients)

    def _looked_up(self, train: bool, gradients: bool) -> dict[str, int]:
        """A lookup is done; whether gradients may come for its trainable tables. The age of its slots, by table."""
        pinned = [name for name in self.names if train and gradients and name in self._group.handles]
        if train:
            self.tables.looked_up(self.names, pinned)
        return self.tables.now(dict.fromkeys(self.names, UNPINNED) | dict.fromkeys(pinned, 0))

    def kept(self, block: IdBlock, eras: Mapping[str, int]) -> dict[int, Tensor]:
        """The rows of a block of slots of these ages that nothing pins, by the place of their feature."""
        unpinned = {name for name, era in eras.items() if era == UNPINNED}
        return kept_rows(block, self._features, self._tables.stores, unpinned) if self._tables is not None else {}

    def as_now(self, looked: Looked, layout: Layout) -> Looked:
        """A lookup of rows as they are and lie now: those that are gone are missing, unless they were kept."""
        kept = {looked.features[place].table for place in looked.kept}
        values = self.tables.without_gone(looked, [name for name in self.names if name not in kept], count=False)
        block = looked.block if values is None else replace(looked.block, values=values)
        return replace(looked, block=block, layout=layout)

    def _shape(self, block: IdBlock) -> tuple[Spans, dict[str, int]]:
        """Which ids of a block are whose, as kernels read it, and how many each dynamic table has."""
        kind = block.names, block.starts
        if kind not in self._known:
            if len(self._known) >= MOST_LAYOUTS:  # ragged blocks are all different
                self._known.clear()
            places, numbers = ({name: n for n, name in enumerate(names)} for names in (block.names, self._group.names))
            at = [places[feature.name] for feature in self._features]
            starts, counts = [block.starts[i] for i in at], [block.starts[i + 1] - block.starts[i] for i in at]
            wanted = dict.fromkeys(self.names, 0)
            for feature, count in zip(self._features, counts, strict=True):
                if feature.table in wanted:
                    wanted[feature.table] += count
            tables = [numbers[feature.table] for feature in self._features]
            spans = of_runs(starts, counts, tables, self._group.device, self._group.sizes.ids)
            self._known[kind] = spans, wanted
        return self._known[kind]
