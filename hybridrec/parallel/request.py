"""Request: what a rank asks of all ranks for one block of ids, and where the vectors will be when they come.

A message of ids is one run of int64: a header (how many ids of each unit; hotness and ids of each bag unit), the
offsets of ragged bags, their ids and weights, then distinct ids of units of rows, then those of copied tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.queue import FeatureSpec
from hybridrec.parallel.routes import Routes

ROWS, BAGS, MARK, COPIES = range(4)  # what a rank answers with, in this order; the mark is a row that tells of faults


class Ids(NamedTuple):
    """A block of ids as a lookup gets it: places of its own features among those of the block come in `pick`."""

    values: Tensor
    offsets: Tensor
    weights: Tensor | None
    starts: tuple[int, ...]
    hotness: tuple[int, ...]  # -1: ragged
    pick: tuple[int, ...]
    batch: int

    def span(self, feature: int) -> tuple[int, int]:
        """Where the ids of a feature begin and end."""
        at = self.pick[feature]
        return self.starts[at], self.starts[at + 1]

    def hot(self, feature: int) -> int:
        return self.hotness[self.pick[feature]]

    def line(self, feature: int) -> int:
        """Which line of offsets a ragged feature has, -1 for others."""
        at = self.pick[feature]
        return -1 if self.hotness[at] >= 0 else sum(hot < 0 for hot in self.hotness[:at])


class OutOfRange(Exception):
    """An id that its table has no row for: feature, position, value."""

    def __init__(self, feature: FeatureSpec, position: int, value: int) -> None:
        super().__init__(feature.name, position, value)
        self.feature, self.position, self.value = feature, position, value


class BadOffsets(Exception):
    """Offsets of a feature that are none: the first row that is wrong, and where it starts."""

    def __init__(self, feature: FeatureSpec, row: int, start: int) -> None:
        super().__init__(feature.name, row, start)
        self.feature, self.row, self.start = feature, row, start


class Request:
    """The messages of one block, and the sizes of everything that comes of them."""

    def __init__(self, routes: Routes, ids: Ids) -> None:
        self.routes, self.ids = routes, ids
        self._check()
        asked = [(target, *_length(ids.span(number))) for target, number in routes.asked]
        self._routed = routes.router.route(ids.values.data_ptr(), asked)
        if self._routed.fault is not None:
            number, position, value = self._routed.fault
            raise OutOfRange(routes.features[routes.asked[number][1]], position, value)
        counts = self._routed.counts().reshape(-1, routes.world)
        self.row_counts = counts[: len(routes.rows)]  # [units, world] ids
        self.copied_counts = counts[len(routes.rows) :, routes.rank]  # [units]
        self.bag_counts = np.array(
            [np.diff(ids.span(unit.features[0]))[0] for unit in routes.bags.units], dtype=np.int64
        ).reshape(-1)
        self._measure()

    def _check(self) -> None:
        """Offsets, and ids that go to holders as they are."""
        for number, feature in enumerate(self.routes.features):
            if self.ids.hot(number) < 0:
                self._check_offsets(number, feature)
        for number, rows in self.routes.checked:
            start, stop = self.ids.span(number)
            mine = self.ids.values[start:stop]
            if stop > start and (int(mine.min()) < 0 or int(mine.max()) >= rows):
                position = int(((mine < 0) | (mine >= rows)).nonzero()[0, 0])
                raise OutOfRange(self.routes.features[number], position, int(mine[position]))

    def _check_offsets(self, number: int, feature: FeatureSpec) -> None:
        offsets, (start, stop) = self.ids.offsets[self.ids.line(number)].numpy(), self.ids.span(number)
        lengths = np.diff(offsets)
        if offsets[0] == 0 and offsets[-1] == stop - start and not (lengths < 0).any():
            return
        row = int(np.argmax(lengths < 0)) if (lengths < 0).any() else 0 if offsets[0] else len(lengths)
        raise BadOffsets(feature, row, int(offsets[row]))

    def _measure(self) -> None:
        """Words of each message, and rows of each class of width in what comes back."""
        routes, ids, world = self.routes, self.ids, self.routes.world
        ragged = np.array([ids.hot(unit.features[0]) < 0 for unit in routes.bags.units], dtype=np.int64)
        weighted = ids.weights is not None
        self.words: list[int] = []
        self.row_starts = np.zeros_like(self.row_counts)  # in the message
        for rank in range(world):
            rows, bags = routes.rows.held[rank], routes.bags.held[rank]
            at = len(rows) + len(routes.copied) + 2 * len(bags) + int(ragged[bags].sum()) * (ids.batch + 1)
            total = int(self.bag_counts[bags].sum())
            at += total + (-(-total // 2) if weighted else 0)
            counts = self.row_counts[rows, rank]
            self.row_starts[rows, rank] = at + np.cumsum(counts) - counts
            self.words.append(at + int(counts.sum()) + int(self.copied_counts.sum()))
        self._place()

    def _place(self) -> None:
        """Rows of vectors by class, in the order in which they come: of each rank its rows, bags, mark, own copies."""
        routes, batch = self.routes, self.ids.batch
        classes, world = len(routes.widths), routes.world
        self.segments = np.zeros((world, 4, classes), dtype=np.int64)  # rows that come from a rank, by kind and class
        for rank in range(world):
            np.add.at(self.segments[rank, ROWS], routes.rows.classes, self.row_counts[:, rank])
            np.add.at(self.segments[rank, BAGS], routes.bags.classes[routes.bags.held[rank]], batch)
        self.segments[:, MARK, 0] = int(routes.marked)
        np.add.at(self.segments[routes.rank, COPIES], routes.copied.classes, self.copied_counts)
        flat = self.segments.reshape(-1, classes)
        self.firsts = (np.cumsum(flat, axis=0) - flat).reshape(self.segments.shape)  # first row of each segment
        self.class_rows = flat.sum(axis=0)
        self.marks = self.firsts[:, MARK, 0].tolist()
        widths = np.array(routes.widths, dtype=np.int64)
        self.floats = (self.segments.sum(axis=1) @ widths).tolist()  # that come from each rank

    # -- the message ----------------------------------------------------------------------------------------

    def pack(self) -> Tensor:
        """The messages to all ranks, one after another; also finds `positions`."""
        message = torch.empty(sum(self.words), dtype=torch.int64)
        words = message.numpy()
        ends = np.cumsum(self.words)
        addresses = np.zeros((len(self.routes.rows) + len(self.routes.copied), self.routes.world), dtype=np.int64)
        copies: list[int] = []  # where copied ids begin in each message
        for rank, (end, size) in enumerate(zip(ends.tolist(), self.words, strict=True)):
            self._head(words[end - size : end], rank)
            rows = self.routes.rows.held[rank]
            addresses[rows, rank] = end - size + self.row_starts[rows, rank]
            copies.append(end - int(self.copied_counts.sum()))
        home = self.routes.rank
        within = np.cumsum(self.copied_counts) - self.copied_counts
        addresses[len(self.routes.rows) :, home] = copies[home] + within
        self._fill((message.data_ptr() + 8 * addresses).ravel().tolist())
        mine = words[copies[home] : copies[home] + int(self.copied_counts.sum())]
        for rank, start in enumerate(copies):
            if rank != home and len(mine):
                words[start : start + len(mine)] = mine
        return message

    def _head(self, words: np.ndarray, rank: int) -> None:
        """The header of a message, and the bags."""
        routes, ids = self.routes, self.ids
        rows, bags = routes.rows.held[rank], routes.bags.held[rank]
        at = len(rows) + len(routes.copied)
        words[: len(rows)] = self.row_counts[rows, rank]
        words[len(rows) : at] = self.copied_counts
        numbers = [routes.bags.units[u].features[0] for u in bags]
        words[at : at + 2 * len(bags) : 2] = [ids.hot(number) for number in numbers]
        words[at + 1 : at + 2 * len(bags) : 2] = self.bag_counts[bags]
        at += 2 * len(bags)
        for number in numbers:
            if ids.hot(number) < 0:
                words[at : at + ids.batch + 1] = ids.offsets[ids.line(number)].numpy()
                at += ids.batch + 1
        total = int(self.bag_counts[bags].sum())
        _join(ids.values, [ids.span(number) for number in numbers], words[at : at + total])
        if ids.weights is not None and total:
            packed = words[at + total : at + total + -(-total // 2)].view(np.float32)
            _join(ids.weights.detach(), [ids.span(number) for number in numbers], packed[:total])

    # -- where vectors will be ------------------------------------------------------------------------------

    def _fill(self, addresses: list[int]) -> None:
        """Write distinct ids into the messages, and find where each part has the vector of each id or bag."""
        routes, ids = self.routes, self.ids
        sizes = [ids.batch if part.kind == "bags" else _length(ids.span(part.feature))[1] for part in routes.parts]
        self.starts = [0, *np.cumsum(sizes).tolist()]
        self.positions = torch.empty(self.starts[-1], dtype=torch.int64)
        bases = np.concatenate([self.row_bases(), self._copied_bases()])
        where = {
            (part.kind, part.unit, part.feature): start for part, start in zip(routes.parts, self.starts, strict=False)
        }
        first, rows = self.positions.data_ptr(), len(routes.rows)
        to = [
            first + 8 * where["rows" if target < rows else "copied", target if target < rows else target - rows, number]
            for target, number in routes.asked
        ]
        self._routed.fill(addresses, bases.ravel().tolist(), to)
        for part, start in zip(routes.parts, self.starts, strict=False):
            if part.kind == "bags":
                base = self._bag_base(part.unit)
                torch.arange(base, base + ids.batch, out=self.positions[start : start + ids.batch])

    def row_bases(self) -> np.ndarray:
        """The first row of each unit from each rank, [units, world]: after those of its class before it."""
        before = np.cumsum(self.row_counts, axis=0) - self.row_counts
        classes = self.routes.rows.classes
        first_of_class = np.searchsorted(classes, classes)  # unit where the class begins
        return self.firsts[:, ROWS, :].T[classes] + before - before[first_of_class]

    def _copied_bases(self) -> np.ndarray:
        routes = self.routes
        bases = np.zeros((len(routes.copied), routes.world), dtype=np.int64)
        before = np.cumsum(self.copied_counts) - self.copied_counts
        classes = routes.copied.classes
        start = before - before[np.searchsorted(classes, classes)] if len(classes) else before
        bases[:, routes.rank] = self.firsts[routes.rank, COPIES][classes] + start
        return bases

    def _bag_base(self, unit: int) -> int:
        bags = self.routes.bags
        holder = bags.units[unit].piece.holders[0]
        held = bags.held[holder]
        same = held[bags.classes[held] == bags.classes[unit]]
        return int(self.firsts[holder, BAGS, bags.classes[unit]]) + int(np.searchsorted(same, unit)) * self.ids.batch


def _length(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], span[1] - span[0]


def _join(source: Tensor, spans: Sequence[tuple[int, int]], to: np.ndarray) -> None:
    """Copy spans of the source, one after another."""
    at, values = 0, source.numpy()
    for start, stop in spans:
        to[at : at + stop - start] = values[start:stop]
        at += stop - start
