"""Answers: what a rank does with the ids that all ranks have sent it: look up, and later queue gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.parallel.routes import Routes, Unit
from hybridrec.parallel.unfed import unmoved

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
        self.mark_width = routes.widths[0] if routes.widths else 0
        self.row_set = self._sequences(self.rows)
        self.all_row_set = self._sequences(self.rows * routes.world)  # of all ranks at once
        self.copied_set = self._sequences(self.copied)
        specs = [routes.features[unit.features[0]] for unit in self.bags]
        self.bag_set = _native.TableSet(group.natives, [(self.place[s.table], s.combiner, s.group) for s in specs])
        self.maxima = [unit.piece.width for unit, s in zip(self.bags, specs, strict=True) if s.combiner == "max"]
        self.dynamic = any(isinstance(table, _native.HashTable) for table in group.natives)
        self.growing = sorted({s.table for s in routes.features if group.stores[s.table].table.dynamic})
        both = (*self.rows, *self.copied)
        self.padding = {unit: padding for unit in both if (padding := routes.padding(unit)) is not None}
        self.row_layout = _spans(len(self.rows))
        self.all_row_layout = _spans(len(self.rows) * routes.world)
        self.copied_layout = _spans(len(self.copied))
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


def _spans(units: int) -> Any:
    """Units of rows whose ids lie anywhere: each has its beginning and its end among the starts."""
    return _native.BlockLayout(list(range(0, 2 * units, 2)), [1] * units, [-1] * units)


class Asked:
    """The message of one rank: where in the words of all of them its parts begin."""

    def __init__(
        self, holdings: Holdings, words: np.ndarray, first: int, batch: int, weighted: bool, own: bool
    ) -> None:
        self.batch, self.own = batch, own
        rows, copied, bags = len(holdings.rows), len(holdings.copied), len(holdings.bags)
        head = words[first:]
        row_counts, copied_counts = head[:rows], head[rows : rows + copied]
        at = rows + copied
        self.hotness = tuple(head[at : at + 2 * bags : 2].tolist())
        bag_counts = head[at + 1 : at + 2 * bags : 2]
        at += first + 2 * bags
        self.offsets = at
        self.bag_ids = at + sum(hot < 0 for hot in self.hotness) * (batch + 1)
        self.bag_starts = [0, *np.cumsum(bag_counts).tolist()]
        total = self.bag_starts[-1]
        self.weights = self.bag_ids + total if weighted and total else None
        at = self.bag_ids + total + (-(-total // 2) if weighted else 0)
        self.row_spans = _ends(at, row_counts)
        self.copied_spans = _ends(at + int(row_counts.sum()), copied_counts)
        row_floats, copied_floats = row_counts * holdings.row_widths, copied_counts * holdings.copied_widths
        self.row_ends, self.copied_ends = np.cumsum(row_floats), np.cumsum(copied_floats)
        self.row_starts, self.copied_starts = self.row_ends - row_floats, self.copied_ends - copied_floats
        self.row_floats, self.copied_floats = int(row_floats.sum()), int(copied_floats.sum())
        self.bag_floats = batch * holdings.bag_width
        self.winners: list[Tensor] = []


def _ends(first: int, counts: np.ndarray) -> list[int]:
    """Beginning and end of each of several runs, one after another."""
    ends = first + np.cumsum(counts)
    return np.stack([ends - counts, ends], axis=1).ravel().tolist()


class Answers:
    """The ids that all ranks have sent, the slots that they were found in, and the vectors that go back.

    `sent` has for each rank the words of its message, the rows of its batch, and whether its bags have weights.
    """

    def __init__(self, holdings: Holdings, words: Tensor, sent: Sequence[tuple[int, int, int]]) -> None:
        self.of, self.words = holdings, words
        numbers, home = words.numpy(), holdings.routes.rank
        firsts = np.cumsum([0, *(size for size, _, _ in sent)]).tolist()
        self.asked = [
            Asked(holdings, numbers, first, batch, bool(kind), rank == home)
            for rank, (first, (_, batch, kind)) in enumerate(zip(firsts, sent, strict=False))
        ]
        mark = holdings.mark_width
        parts = [each.row_floats + each.bag_floats + mark for each in self.asked]
        self.floats = [size + each.own * each.copied_floats for size, each in zip(parts, self.asked, strict=True)]
        self.gradient_floats = [size + each.copied_floats for size, each in zip(parts, self.asked, strict=True)]

    # -- looking up -----------------------------------------------------------------------------------------

    def look_up(self, vectors: Sequence[Tensor], train: bool) -> Any:
        """Write the vectors for each rank, float32 [floats]; returns a fault, of which all get the mark, or None."""
        of = self.of
        self.removals = torch.zeros(len(of.group.natives) if of.dynamic else 0, dtype=torch.int64)
        self.slots = torch.empty(len(self.words), dtype=torch.int32)
        firsts = [part.data_ptr() for part in vectors]
        fault = self._rows(firsts, train)
        for asked, first in zip(self.asked, firsts, strict=True):
            asked.winners = [torch.empty(asked.batch, width, dtype=torch.int32) for width in of.maxima]
            if of.bags and fault is None:
                fault = self._bags(asked, first + 4 * asked.row_floats, train)
            if of.copied and asked.own and fault is None:
                fault = self._copied(asked, first + 4 * (asked.row_floats + asked.bag_floats + of.mark_width), train)
        for asked, part in zip(self.asked, vectors, strict=True):
            at = asked.row_floats + asked.bag_floats
            part[at : at + of.mark_width] = float(fault is not None)
        return fault

    def _rows(self, firsts: list[int], train: bool) -> Any:
        """Those of all ranks in one call: a dynamic table sees all ids of a step before it lets any in."""
        if not self.of.rows:
            return None
        starts = [end for asked in self.asked for end in asked.row_spans]
        to = [
            address
            for asked, first in zip(self.asked, firsts, strict=True)
            for address in (first + 4 * asked.row_starts).tolist()
        ]
        return self._look_up(self.of.all_row_set, self.of.all_row_layout, starts, to, train)

    def _copied(self, asked: Asked, first: int, train: bool) -> Any:
        to = (first + 4 * asked.copied_starts).tolist()
        return self._look_up(self.of.copied_set, self.of.copied_layout, asked.copied_spans, to, train)

    def _look_up(self, tables: Any, layout: Any, starts: list[int], to: list[int], train: bool) -> Any:
        words, slots = self.words.data_ptr(), self.slots.data_ptr()
        return tables.lookup(layout, words, starts, 0, 0, 0, train, slots, 0, 0, to, [], self._removed())

    def _bags(self, asked: Asked, to: int, train: bool) -> Any:
        return self.of.bag_set.lookup(
            *(self.of.layout(asked.hotness), *self._bags_at(asked), asked.batch, train),
            *(self._slots_at(asked.bag_ids), to, -1, [], [part.data_ptr() for part in asked.winners], self._removed()),
        )

    def _bags_at(self, asked: Asked) -> tuple[int, list[int], int, int]:
        """Where ids, offsets and weights of bags are."""
        weights = 0 if asked.weights is None else self._at(asked.weights)
        return self._at(asked.bag_ids), asked.bag_starts, self._at(asked.offsets), weights

    def _at(self, word: int) -> int:
        return self.words.data_ptr() + 8 * word

    def _slots_at(self, word: int) -> int:
        return self.slots.data_ptr() + 4 * word

    def _removed(self) -> int:
        return self.removals.data_ptr() if self.of.dynamic else 0

    # -- gradients ------------------------------------------------------------------------------------------

    def queue(self, gradients: Sequence[Tensor], tables: set[str], marked: bool) -> None:
        """Keep the gradients of each rank, float32 [gradient_floats], until the step of these tables.

        Where some are `marked` (`unfed.py`), their rows are passed over.
        """
        of, slots = self.of, self.slots
        removals = self.removals.tolist() if of.dynamic else [0] * len(of.group.natives)
        if marked:
            self.slots = slots.clone()  # another backward call may bring what this one has not
        for asked, part in zip(self.asked, gradients, strict=True):
            held, first = (part, self.words, self.slots, asked.winners), part.data_ptr()
            self._untrained(of.rows, asked.row_spans)
            pooled = part[asked.row_floats : asked.row_floats + asked.bag_floats]
            if marked:
                self._unmoved(asked.row_spans, of.row_widths, part)
            to = (first + 4 * asked.row_starts).tolist()
            of.group.queue(self._pending(of.row_set, of.row_layout, asked.row_spans, to, removals), held, tables)
            first += 4 * asked.row_floats
            if of.bags and not (marked and bool(unmoved(pooled[None]))):
                of.group.queue(self._pending_bags(asked, first, removals), held, tables)
            first += 4 * (asked.bag_floats + of.mark_width)
            if of.copied:
                self._place_copies(asked)
                if marked:
                    copies = part[asked.row_floats + asked.bag_floats + of.mark_width :]
                    self._unmoved(asked.copied_spans, of.copied_widths, copies)
                to = (first + 4 * asked.copied_starts).tolist()
                work = self._pending(of.copied_set, of.copied_layout, asked.copied_spans, to, removals)
                of.group.queue(work, held, tables)
        self.slots = slots

    def largest(self, gradients: Sequence[Tensor]) -> float:
        """The largest of what ranks have put into their marks."""
        marks = [asked.row_floats + asked.bag_floats for asked in self.asked]
        return max(float(part[mark]) for part, mark in zip(gradients, marks, strict=True))

    def _pending(self, tables: Any, layout: Any, starts: list[int], grads: list[int], removals: list[int]) -> Any:
        words, slots = self.words.data_ptr(), self.slots.data_ptr()
        return _native.Pending(tables, layout, words, starts, 0, 0, 0, slots, 0, 0, grads, [], removals)

    def _pending_bags(self, asked: Asked, first: int, removals: list[int]) -> Any:
        return _native.Pending(
            *(self.of.bag_set, self.of.layout(asked.hotness), *self._bags_at(asked), asked.batch),
            *(self._slots_at(asked.bag_ids), first, -1, [], [part.data_ptr() for part in asked.winners], removals),
        )

    def _place_copies(self, asked: Asked) -> None:
        """The slots of a table that every rank has whole are its ids."""
        first, last = asked.copied_spans[0], asked.copied_spans[-1]
        self.slots[first:last] = self.words[first:last].to(torch.int32)
        self._untrained(self.of.copied, asked.copied_spans)

    def _unmoved(self, spans: list[int], widths: np.ndarray, gradients: Tensor) -> None:
        """The slots of units that gradients, one unit after another, are marked for are missing."""
        at = 0
        for begin, end, width in zip(spans[::2], spans[1::2], widths.tolist(), strict=True):
            size = (end - begin) * width
            self.slots[begin:end].masked_fill_(unmoved(gradients[at : at + size].view(-1, width)), -1)
            at += size

    def _untrained(self, units: Sequence[Unit], spans: list[int]) -> None:
        """The slots of padding are missing: it takes no gradient."""
        for number, unit in enumerate(units) if self.of.padding else ():
            padding, holders = self.of.padding.get(unit), unit.piece.holders
            if padding is not None:
                mine = slice(spans[2 * number], spans[2 * number + 1])
                whole = self.words[mine]
                if not unit.piece.copied:  # holders number their rows
                    whole = whole * len(holders) + holders.index(self.of.routes.rank)
                self.slots[mine].masked_fill_(whole == padding, -1)
