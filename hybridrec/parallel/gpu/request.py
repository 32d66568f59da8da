"""DeviceRequest: what a rank asks of all ranks for one block of ids on a GPU, and where vectors will be.

The ids never leave the device: the host learns how many there are for each rank, and cuts the messages. Of each rank
come its pooled bags, then its rows by width, then, from itself, those of tables that every rank has.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hybridrec.ops.id_routes.lines import of
from hybridrec.ops.id_routes.triton import numbers_of, route
from hybridrec.parallel.gpu.asking import Asking
from hybridrec.parallel.gpu.beside import Beside
from hybridrec.parallel.request import BadOffsets, OutOfRange
from hybridrec.parallel.routes import Routes
from hybridrec.types import IdBlock

OFFSETS = 5  # numbers that the host learns of the offsets of a feature


class DeviceRequest:
    """The messages of one block, and the sizes of everything that comes of them. The current stream makes it."""

    def __init__(self, asking: Asking, block: IdBlock, pick: tuple[int, ...], beside: Beside) -> None:
        self.asking, self.block, self.pick = asking, block, pick
        self.shape = asking.shape(block, pick)
        shape, count = self.shape, len(asking.routes.features)
        room = shape.starts[-1], shape.bag_starts[-1] - shape.bag_starts[0], count
        numbers = numbers_of(block.values, shape.numbered)
        routed = route(block.values, shape.lines, shape.first_programs, shape.programs, room, asking.keys, numbers)
        self.positions, self._distinct, self._rows = routed.positions, routed.distinct, routed.rows
        self._lengths = block.offsets.diff(dim=1)
        parts = [routed.ends, routed.faults, self._at_faults(routed.faults), _told_of(block.offsets, self._lengths)]
        told = beside.on_host(torch.cat(parts)).numpy()
        ends, faults, values, offsets = np.split(told, np.cumsum([len(part) for part in parts[:-1]]))
        self._refuse(faults, values, offsets.reshape(-1, OFFSETS))
        self._measure(ends)

    def _at_faults(self, faults: Tensor) -> Tensor:
        """The ids at the places of faults; any where there is none."""
        values = self.block.values
        if not len(values):
            return faults
        return values[(self.shape.feature_starts + faults).clamp(max=len(values) - 1)]

    def _refuse(self, faults: np.ndarray, values: np.ndarray, offsets: np.ndarray) -> None:
        """Raise for offsets that are none, and for ids that a table has no row for."""
        features = self.asking.routes.features
        for number, feature in enumerate(features):
            line = self.line(number)
            first, last, falls, row, start = offsets[line].tolist() if line >= 0 else (0, -1, 0, 0, 0)
            size = self.shape.spans[number][1] - self.shape.spans[number][0]
            if falls:
                raise BadOffsets(feature, row, start)
            if line >= 0 and (first != 0 or last != size):
                raise BadOffsets(feature, *((0, first) if first else (self.block.batch_size, last)))
        for number, feature in enumerate(features):
            if faults[number] < of.NO_FAULT:
                raise OutOfRange(feature, int(faults[number]), int(values[number]))

    def hot(self, feature: int) -> int:
        """Ids of each bag of a feature, -1 where that varies."""
        found = self.block.hotness[self.pick[feature]]
        return -1 if found is None else found

    def line(self, feature: int) -> int:
        """Which line of offsets a ragged feature has, -1 for others."""
        at = self.pick[feature]
        return -1 if self.block.hotness[at] is not None else self.block.hotness[:at].count(None)

    # -- sizes ----------------------------------------------------------------------------------------------

    def _measure(self, ends: np.ndarray) -> None:
        routes, segments = self.asking.routes, self.asking.segments
        self._ends = ends
        counts = np.diff(ends)
        self.row_counts = np.zeros((len(routes.rows), routes.world), np.int64)
        self.copied_counts = np.zeros(len(routes.copied), np.int64)
        for each, size in zip(segments, counts.tolist(), strict=True):
            if each.rank == routes.world:
                self.copied_counts[each.unit] = size
            else:
                self.row_counts[each.unit, each.rank] = size
        borders = ends[self.asking.first_of]  # [widths, world + 2]
        self.rows = np.diff(borders, axis=1)  # of each width from each rank, then copies
        self._borders = borders
        widths = np.array(routes.widths, np.int64)
        floats = self.block.batch_size * bag_widths(routes) + widths @ self.rows[:, :-1]
        copies = int(widths @ self.rows[:, -1])
        home = np.arange(routes.world) == routes.rank
        self.floats: list[int] = (floats + home * copies).tolist()  # that come from each rank
        self.gradient_floats: list[int] = (floats + copies + routes.apart).tolist()  # that go to each rank

    def counts(self) -> np.ndarray:
        """What each rank must know of its message, int64 [world, n]: ids of units, and hotness and ids of bags."""
        routes = self.asking.routes
        made = [np.tile(self.copied_counts, (routes.world, 1)), self.row_counts.T]
        for values in (self.hot, self._size):
            line = np.array([values(unit.features[0]) for unit in routes.bags.units], np.int64).reshape(-1)
            made.append(np.tile(line, (routes.world, 1)))
        return np.concatenate(made, axis=1)

    def _size(self, feature: int) -> int:
        first, last = self.shape.spans[feature]
        return last - first

    # -- the message ----------------------------------------------------------------------------------------

    def message(self) -> tuple[Tensor, list[int]]:
        """The messages to all ranks one after another, int64, and the length of each."""
        routes = self.asking.routes
        copies = [self._distinct[slice(*self._borders[c, -2:])] for c in range(len(routes.widths))]
        parts, sizes = [], []
        for rank in range(routes.world):
            mine = [
                *self._bags(rank),
                *(self._distinct[slice(*line[rank : rank + 2])] for line in self._borders),
                *copies,
            ]
            parts += [part for part in mine if len(part)]
            sizes.append(sum(map(len, mine)))
        return (torch.cat(parts) if parts else self.block.values[:0]), sizes

    def _bags(self, rank: int) -> list[Tensor]:
        """The lengths of ragged bags for a rank, their ids and weights."""
        routes, shape = self.asking.routes, self.shape
        mine = [n for n, p in enumerate(self.asking.bags) if routes.parts[p].piece.holders[0] == rank]
        if not mine:
            return []
        features = [routes.parts[self.asking.bags[n]].feature for n in mine]
        lengths = [self._lengths[self.line(feature)] for feature in features if self.hot(feature) < 0]
        ids = self._rows[shape.bag_starts[mine[0]] : shape.bag_starts[mine[-1] + 1]]
        if self.block.weights is None:
            return [*lengths, ids]
        weights = torch.cat([self.block.weights.detach()[slice(*shape.spans[feature])] for feature in features])
        return [*lengths, ids, torch.nn.functional.pad(weights, (0, len(weights) % 2)).view(torch.int64)]


def bag_widths(routes: Routes) -> np.ndarray:
    """The numbers of a row of pooled bags from each rank, int64 [world]."""
    return np.array([int(routes.bags.widths[held].sum()) for held in routes.bags.held], np.int64)


def _told_of(offsets: Tensor, lengths: Tensor) -> Tensor:
    """Of each line of offsets: its first and last number, whether it falls, and the first row where it does."""
    if not len(offsets):
        return offsets.new_empty(0)
    falls = lengths < 0
    row = falls.to(torch.int8).argmax(1) if lengths.shape[1] else offsets.new_zeros(len(offsets))
    start = offsets.gather(1, row[:, None])[:, 0]
    return torch.stack([offsets[:, 0], offsets[:, -1], falls.any(1).long(), row, start], 1).flatten()
