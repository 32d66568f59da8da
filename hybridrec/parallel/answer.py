"""Answer: what a rank does with the ids that another rank (or itself) has sent: look up, and later queue gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.parallel.routes import Routes, Unit

if TYPE_CHECKING:
    from hybridrec.embedding.group import TableGroup


class Holdings:
    """What this rank holds of a lookup's units, as sets of native tables. Made once per lookup."""

    def __init__(self, routes: Routes, group: TableGroup) -> None:
        self.routes, self.group = routes, group
        self.place = {name: i for i, name in enumerate(group.names)}
        self.rows = [routes.rows.units[u] for u in routes.rows.held[routes.rank]]
        self.bags = [routes.bags.units[u] for u in routes.bags.held[routes.rank]]
        self.copied = list(routes.copied.units)
        self.row_widths = np.array([unit.piece.width for unit in self.rows], dtype=np.int64)
        self.copied_widths = routes.copied.widths
        self.bag_width = sum(unit.piece.width for unit in self.bags)
        self.row_set = self._sequences(self.rows)
        self.copied_set = self._sequences(self.copied)
        specs = [routes.features[unit.features[0]] for unit in self.bags]
        self.bag_set = _native.TableSet(group.natives, [(self.place[s.table], s.combiner, s.group) for s in specs])
        self.maxima = [unit.piece.width for unit, s in zip(self.bags, specs, strict=True) if s.combiner == "max"]
        self.dynamic = any(isinstance(table, _native.HashTable) for table in group.natives)
        self.growing = sorted({s.table for s in routes.features if group.stores[s.table].table.dynamic})
        self.padding = {
            unit: padding for unit in (*self.rows, *self.copied) if (padding := _padding(routes, unit)) is not None
        }
        self._layouts: dict[tuple[int, ...], Any] = {}

    def _sequences(self, units: Sequence[Unit]) -> Any:
        return _native.TableSet(self.group.natives, [(self.place[unit.piece.table], "none", 1) for unit in units])

    def layout(self, hotness: tuple[int, ...]) -> Any:
        """How bags of such hotness lie in a message."""
        if hotness not in self._layouts:
            lines = np.cumsum([hot < 0 for hot in hotness]) - 1
            of = [int(line) if hot < 0 else -1 for hot, line in zip(hotness, lines, strict=True)]
            self._layouts[hotness] = _native.BlockLayout(list(range(len(hotness))), list(hotness), of)
        return self._layouts[hotness]


def _padding(routes: Routes, unit: Unit) -> int | None:
    """The id of a unit whose row takes no gradient."""
    found = {routes.features[number].padding for number in unit.features}
    return found.pop() if len(found) == 1 else None


class Answer:
    """The ids that one rank has sent, the slots that they were found in, and the vectors that go back."""

    def __init__(self, holdings: Holdings, source: int, message: Tensor, batch: int, weighted: bool) -> None:
        self.of, self.message, self.batch = holdings, message, batch
        self.own = source == holdings.routes.rank
        words, rows, copied, bags = message.numpy(), len(holdings.rows), len(holdings.copied), len(holdings.bags)
        self.row_counts = words[:rows]
        self.copied_counts = words[rows : rows + copied]
        at = rows + copied
        self.hotness = tuple(words[at : at + 2 * bags : 2].tolist())
        counts = words[at + 1 : at + 2 * bags : 2]
        at += 2 * bags
        self._offsets = at
        at += sum(hot < 0 for hot in self.hotness) * (batch + 1)
        self._bag_ids, total = at, int(counts.sum())
        self._bag_starts = [0, *np.cumsum(counts).tolist()]
        at += total
        self._weights = at if weighted and total else None
        at += -(-total // 2) if weighted else 0
        self._row_ids = at
        self._row_starts = [0, *np.cumsum(self.row_counts).tolist()]
        self._copied_ids = at + int(self.row_counts.sum())
        self._copied_starts = [0, *np.cumsum(self.copied_counts).tolist()]
        self.row_floats = int(self.row_counts @ holdings.row_widths)
        self.bag_floats = batch * holdings.bag_width
        self.copied_floats = int(self.copied_counts @ holdings.copied_widths)

    @property
    def floats(self) -> int:
        """Of the vectors that go back."""
        return self.row_floats + self.bag_floats + (self.copied_floats if self.own else 0)

    @property
    def gradient_floats(self) -> int:
        """Of the gradients that will come."""
        return self.row_floats + self.bag_floats + self.copied_floats

    def _at(self, word: int) -> int:
        return self.message.data_ptr() + 8 * word

    # -- looking up -----------------------------------------------------------------------------------------

    def look_up(self, vectors: Tensor, train: bool) -> Any:
        """Write the vectors float32 [floats]; returns a fault, or None."""
        of, to = self.of, vectors.data_ptr()
        self.removals = torch.zeros(len(of.group.natives) if of.dynamic else 0, dtype=torch.int64)
        self.row_slots = torch.empty(self._row_starts[-1], dtype=torch.int32)
        fault = self._rows(of.row_set, self._row_ids, self._row_starts, self.row_slots, to, of.row_widths, train)
        self.bag_slots = torch.empty(self._bag_starts[-1], dtype=torch.int32)
        self.winners = [torch.empty(self.batch, width, dtype=torch.int32) for width in of.maxima]
        if fault is None and of.bags:
            fault = self._bags(to + 4 * self.row_floats, train)
        self.copied_slots = torch.empty(self._copied_starts[-1], dtype=torch.int32)
        if fault is None and self.own and of.copied:
            start = to + 4 * (self.row_floats + self.bag_floats)
            args = (self._copied_ids, self._copied_starts, self.copied_slots, start, of.copied_widths)
            fault = self._rows(of.copied_set, *args, train)
        return fault

    def _rows(
        self, tables: Any, first: int, starts: list[int], slots: Tensor, to: int, widths: np.ndarray, train: bool
    ) -> Any:
        units = len(starts) - 1
        if not units:
            return None
        layout, addresses = self.of.layout((1,) * units), _addresses(to, starts, widths)
        return tables.lookup(
            layout, self._at(first), starts, 0, 0, 0, train, slots.data_ptr(), 0, 0, addresses, [], self._removed()
        )

    def _bags(self, to: int, train: bool) -> Any:
        return self.of.bag_set.lookup(
            self.of.layout(self.hotness),
            *(
                self._at(self._bag_ids),
                self._bag_starts,
                self._at(self._offsets),
                self._weights_at(),
                self.batch,
                train,
            ),
            *(self.bag_slots.data_ptr(), to, -1, [], [part.data_ptr() for part in self.winners], self._removed()),
        )

    def _removed(self) -> int:
        return self.removals.data_ptr() if self.of.dynamic else 0

    def _weights_at(self) -> int:
        return 0 if self._weights is None else self._at(self._weights)

    # -- gradients ------------------------------------------------------------------------------------------

    def queue(self, gradients: Tensor, tables: set[str]) -> None:
        """Keep the gradients float32 [gradient_floats] until the step of these tables."""
        of, at = self.of, gradients.data_ptr()
        removals = self.removals.tolist() if of.dynamic else [0] * len(of.group.natives)
        ids = self.message[self._row_ids : self._row_ids + self._row_starts[-1]]
        slots = self._trained(of.rows, self._row_starts, ids, self.row_slots)
        works = [self._pending(of.row_set, self._row_ids, self._row_starts, slots, at, of.row_widths, removals)]
        at += 4 * self.row_floats
        if of.bags:
            works.append(self._pending_bags(at, removals))
        at += 4 * self.bag_floats
        if of.copied:
            ids = self.message[self._copied_ids : self._copied_ids + self._copied_starts[-1]]
            self.copied_slots = self._trained(of.copied, self._copied_starts, ids, ids.to(torch.int32))
            args = (self._copied_ids, self._copied_starts, self.copied_slots, at, of.copied_widths)
            works.append(self._pending(of.copied_set, *args, removals))
        held = (gradients, self.message, self.row_slots, self.bag_slots, self.copied_slots, self.winners)
        for work in works:
            of.group.queue(work, held, tables)

    def _pending(
        self,
        tables: Any,
        first: int,
        starts: list[int],
        slots: Tensor,
        at: int,
        widths: np.ndarray,
        removals: list[int],
    ) -> Any:
        units = len(starts) - 1
        return _native.Pending(
            *(tables, self.of.layout((1,) * units), self._at(first), starts, 0, 0, 0, slots.data_ptr()),
            *(0, 0, _addresses(at, starts, widths), [], removals),
        )

    def _pending_bags(self, at: int, removals: list[int]) -> Any:
        return _native.Pending(
            *(self.of.bag_set, self.of.layout(self.hotness), self._at(self._bag_ids), self._bag_starts),
            *(self._at(self._offsets), self._weights_at(), self.batch, self.bag_slots.data_ptr()),
            *(at, -1, [], [part.data_ptr() for part in self.winners], removals),
        )

    def _trained(self, units: Sequence[Unit], starts: list[int], ids: Tensor, slots: Tensor) -> Tensor:
        """The slots of rows that take a gradient: those of padding are missing."""
        for number, unit in enumerate(units) if self.of.padding else ():
            padding, holders = self.of.padding.get(unit), unit.piece.holders
            if padding is not None:
                mine = slice(starts[number], starts[number + 1])
                whole = ids[mine]
                if not unit.piece.copied:  # holders number their rows
                    whole = whole * len(holders) + holders.index(self.of.routes.rank)
                slots[mine].masked_fill_(whole == padding, -1)
        return slots


def _addresses(first: int, starts: list[int], widths: np.ndarray) -> list[int]:
    """Where the vectors of each unit begin, which lie one after another."""
    floats = np.diff(starts) * widths
    return (first + 4 * (np.cumsum(floats) - floats)).tolist()
