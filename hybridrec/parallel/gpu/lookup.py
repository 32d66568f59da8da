"""DeviceShardedLookup: the lookup of features whose tables lie on the GPUs of several ranks.

Forward: ids are made distinct on the device, the host learns how many there are for each rank (`request.py`) and tells
it; ids travel from card to card; each rank looks up what it was asked for (`answer.py`); vectors come back and are
pooled (`vectors.py`). Backward: gradients are summed by the vectors that had come, go back the same way, and wait for
the step of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.pooled_lookup.op import TRAIN
from hybridrec.parallel.gpu.answer import DeviceAnswers
from hybridrec.parallel.gpu.asking import Asking
from hybridrec.parallel.gpu.holding import Holding
from hybridrec.parallel.gpu.request import DeviceRequest
from hybridrec.parallel.gpu.transport import OnItsWay
from hybridrec.parallel.gpu.vectors import PooledVectors, Pooling
from hybridrec.parallel.rank_lookup import (
    SIZES,
    STOPPED,
    RankLookup,
    check_told,
    fed_tables,
    sizes_line,
    told_share,
)
from hybridrec.parallel.request import BadOffsets, OutOfRange
from hybridrec.parallel.routes import Routes
from hybridrec.parallel.wire_types import on_wire, received
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.gpu.group import DeviceShardedGroup


class Given(NamedTuple):
    """A block, and the moment from which it can be read."""

    block: IdBlock
    there: Any


class DeviceWay:
    """The routes of a lookup, with what is made of them once."""

    def __init__(self, routes: Routes, lookup: DeviceShardedLookup) -> None:
        group = lookup.group
        self.routes = routes
        self.asking = Asking(routes, lookup.tables, group.beside)
        self.holding = Holding(routes, group, group.beside)
        self.pooling = Pooling(self.asking, group.device, group.sizes)
        self.sequences = self.pooling.sequences

    def fed(self, flat: Tensor | None, sequences: Sequence[Tensor | None]) -> set[str]:
        """The tables that a gradient has come for."""
        return fed_tables(self.routes, self.sequences, flat, sequences)


class DeviceFlight:
    """One block on its way: the request, and the answers to what others ask meanwhile. Sizes are known."""

    def __init__(
        self, lookup: DeviceShardedLookup, way: DeviceWay, request: DeviceRequest, answers: DeviceAnswers, share: float
    ) -> None:
        self._group, self.way, self.request, self.answers, self.share = lookup.group, way, request, answers, share
        self._message: Tensor | None
        self._message, self._sizes = request.message()
        self._ready = lookup.group.beside.moment()
        self._ids: OnItsWay | None = None
        self._taken: Any = None  # the moment from which they can be read, if they were taken ahead
        self.vectors: OnItsWay | None = None  # while they are on their way

    def depart(self) -> None:
        """Send the ids, unless they are on their way."""
        message, self._message = self._message, None
        if message is not None:
            with self._group.beside.after(self._ready, message):
                self._ids = self._group.transport.send("ids", message, self._sizes, self.answers.words)

    def fetch(self) -> None:
        """Take ids that are on their way, and have their rows of tiered tables come beside whatever computes.

        Those of one flight come at a time, and stay until its step; others wait for their turn.
        """
        tiers, beside = self.way.holding.tiers, self._group.beside_rows
        if tiers:
            with beside.after(self._ready):
                self._take()
                tiers.expect(self.answers.looked.block)
                self._taken = beside.moment()
            tiers.go_on()

    def arrive(self) -> None:
        """Take the ids of all ranks. The current stream goes on when they are there."""
        beside = self._group.beside
        self._group.departures.until(self)
        beside.wait(self._ready, self.request.positions, *self.answers.made_beside())
        self._take()
        beside.wait(self._taken, *self.answers.taken())

    def _take(self) -> None:
        """The ids that have come, once; the current stream reads them."""
        arriving, self._ids = self._ids, None
        if arriving is not None:
            words = arriving.wait()
            self._group.beside.wait(None, words)
            self.answers.take(words)

    def spread(self, weights: Tensor) -> Tensor:
        """The weight of each position."""
        spans, parts = self.request.shape.spans, self.way.routes.parts
        mine = [weights[slice(*spans[parts[p].feature])] for p in self.way.asking.parts]
        return torch.cat(mine) if mine else weights[:0]

    def gathered(self, of_positions: Tensor) -> Tensor:
        """Gradients of the weights of positions, added up where several pieces have one feature."""
        made = torch.zeros(len(self.request.block.values), device=of_positions.device)
        parts, shape = self.way.routes.parts, self.request.shape
        for p, start in zip(self.way.asking.parts, shape.starts, strict=False):
            first, last = shape.spans[parts[p].feature]
            made[first:last] += of_positions[start : start + last - first]
        return made


class DeviceShardedLookup(RankLookup):
    """The lookup of tables on GPUs."""

    group: DeviceShardedGroup

    def __init__(self, group: DeviceShardedGroup, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        super().__init__(group, features, remedy)
        self.anchor = torch.zeros((), device=group.device, requires_grad=self.trained)

    def make_way(self, routes: Routes) -> DeviceWay:
        return DeviceWay(routes, self)

    def pooled(self, anchor: Tensor, weights: Tensor | None, flight: DeviceFlight, mode: int) -> Sequence[Tensor]:
        if flight.vectors is None:
            self.start(flight, mode)
        return PooledVectors.apply(anchor, weights, self, flight)  # pyright: ignore[reportReturnType]

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of ids, where the only feature is a sequence; those of tiered tables stay where they are."""
        offsets = ids.new_empty(0, len(ids) + 1)
        block = IdBlock.trusted((self.features[0].name,), ids, (0, len(ids)), (1,), offsets, None, len(ids))
        flight = self._flight(block)
        flight.arrive()
        self._send_vectors(flight, flight.answers.read())
        _, (found,) = self._run(flight, None, False)
        return found

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature; hotness is -1 where there are offsets."""
        ends = offsets[None] if hotness < 0 else offsets.new_empty(0, batch_size + 1)
        names, hot = (self.features[0].name,), (None if hotness < 0 else hotness,)
        return self(IdBlock.trusted(names, values, (0, len(values)), hot, ends, weights, batch_size), train)

    # -- ids --------------------------------------------------------------------------------------------------

    def prepare(self, block: IdBlock, weight: float | None, train: bool = True) -> None:
        begun = self.group.exchange.ahead.begin(self, block, float(block.batch_size) if weight is None else weight)
        self.group.departures.add(begun)

    def ids_of(self, block: IdBlock) -> Given:
        return Given(block, self.group.beside.moment())

    def fly(self, ids: Given, weight: float) -> DeviceFlight:
        block, group = ids.block, self.group
        with group.beside.after(ids.there, block.values, block.offsets, block.weights):
            way = self.way(block.weights is None or not block.weights.requires_grad)
            self._watch(way)
            try:
                request = DeviceRequest(way.asking, block, self.pick(block), group.beside)
            except (OutOfRange, BadOffsets) as wrong:
                self._stop(way.routes)
                raise self.refusal(wrong) from None
            told = group.exchange.sizes(self._sizes(request, weight))
            check_told(told)
            answers = DeviceAnswers(
                way.holding, told[:, SIZES:].numpy(), told[:, 1].tolist(), (told[:, 3] > 0).tolist()
            )
            return DeviceFlight(self, way, request, answers, told_share(told, weight))

    def _watch(self, way: DeviceWay) -> None:
        """Raise, and tell all ranks, if an earlier batch needed more rows than there is room for.

        Or if a file with cold rows was cut.
        """
        try:
            way.holding.tiers.watch()
            way.holding.admission.refuse()
        except (ValueError, OSError) as error:
            self._stop(way.routes)
            raise type(error)(f"rank {way.routes.rank}: {error}") from None

    def _sizes(self, request: DeviceRequest, weight: float) -> Tensor:
        """What each rank must know of this one, int64 [world, n]."""
        counts = request.counts()
        head = sizes_line(0, request.block.batch_size, weight, request.block.weights)
        return torch.from_numpy(np.concatenate([np.tile(head, (len(counts), 1)), counts], axis=1))

    def _stop(self, routes: Routes) -> None:
        """Tell all ranks that this one cannot go on."""
        numbers = SIZES + len(routes.copied) + len(routes.rows) + 2 * len(routes.bags)
        self.group.exchange.sizes(torch.full((routes.world, numbers), STOPPED, dtype=torch.int64))

    # -- vectors ----------------------------------------------------------------------------------------------

    def start(self, flight: DeviceFlight, mode: int) -> None:
        flight.arrive()
        vectors = flight.answers.look_up(torch.is_grad_enabled(), mode)
        if mode == TRAIN and self.trained:
            flight.answers.prepare()
        self._send_vectors(flight, vectors)

    def _send_vectors(self, flight: DeviceFlight, vectors: Tensor) -> None:
        message, sizes = on_wire(vectors, self.group.wire.forward), (flight.answers.floats, flight.request.floats)
        flight.vectors = self.group.transport.send("vectors", message, *sizes)

    def answered(self, flight: DeviceFlight) -> Tensor:
        """What all ranks have answered, float32."""
        arriving, flight.vectors = flight.vectors, None
        assert arriving is not None, "they are on their way"
        return received(arriving.wait(), self.group.wire.forward)

    # -- gradients --------------------------------------------------------------------------------------------

    def send_gradients(
        self, flight: DeviceFlight, sums: Sequence[Tensor], bags: dict[int, Tensor], tables: set[str], marked: bool
    ) -> None:
        """Gradients by width and of bags, to the ranks that vectors came from; those of copied tables go to all.

        Some rows may be `marked` (`unfed.py`).
        """
        group, request, answers = self.group, flight.request, flight.answers
        message = _message(flight, sums, bags).mul_(flight.share)
        if flight.way.routes.apart:
            _tell_largest(message, request.gradient_floats)
        sent, of = on_wire(message, group.wire.gradient), answers.gradient_floats
        arriving = group.transport.send("gradients", sent, request.gradient_floats, of)

        def land() -> None:
            gradients = received(arriving.wait(), group.wire.gradient)
            answers.queue(gradients, tables, marked)
            if flight.way.routes.apart:
                group.saw(answers.largest(gradients), tables)

        group.expect(land)
        for following in group.departures.all():
            following.fetch()
        flight.way.holding.tiers.go_on()  # with the first of those that were sent before


def _message(flight: DeviceFlight, sums: Sequence[Tensor], bags: dict[int, Tensor]) -> Tensor:
    """The gradients for all ranks one after another, each laid out as its vectors were, and perhaps a number behind."""
    world, rows = flight.way.routes.world, flight.request.rows
    behind = [torch.zeros(1, device=flight.way.pooling.device)] if flight.way.routes.apart else []
    ends = np.cumsum(rows, axis=1)
    copies = [table[len(table) - count :] for table, count in zip(sums, rows[:, -1].tolist(), strict=True)]
    parts = []
    for rank in range(world):
        mine = [table[end - n : end] for table, end, n in zip(sums, ends[:, rank], rows[:, rank], strict=True)]
        parts += [*([bags[rank]] if rank in bags else []), *mine, *copies, *behind]
    return torch.cat([part.flatten() for part in parts])


def _tell_largest(message: Tensor, sizes: Sequence[int]) -> None:
    """Let the last number for each rank be the largest gradient that goes to any; inf where one is not finite."""
    largest = torch.stack(message.aminmax()).abs().max().nan_to_num(nan=torch.inf, posinf=torch.inf)
    for part in message.split(list(sizes)):
        part[-1] = largest
