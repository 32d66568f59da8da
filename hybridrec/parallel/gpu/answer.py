"""DeviceAnswers: what a rank does on its GPU with the ids that all ranks have sent it: look up, later queue gradients.

The host knows from the sizes that ranks told each other how everything lies; it never looks at what has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hybridrec.embedding.gpu.layout import Layout
from hybridrec.embedding.gpu.lookup import Looked
from hybridrec.ops.pooled_lookup.op import EVAL, TRAIN
from hybridrec.ops.pooled_lookup.triton import pool
from hybridrec.ops.pooled_lookup.triton_max import largest
from hybridrec.ops.row_gather.triton import gather, rows_of_program
from hybridrec.parallel.gpu.copies import Copies
from hybridrec.parallel.gpu.holding import Holding
from hybridrec.parallel.unfed import unmoved
from hybridrec.types import IdBlock
from hybridrec.types.id_block import NO_ID


@dataclass(eq=False)
class Answered(Looked):
    """A lookup for all ranks; its gradients come as one run of numbers, in the order of the layout."""

    numbers: Tensor | None = None

    def gradient(self) -> Tensor:
        assert self.numbers is not None, "gradients have come"
        return self.numbers if self.winners is None else torch.cat([self.numbers, self._of_max()])

    def occurrences(self, table: str) -> Iterator[tuple[Tensor, Tensor]]:
        (rest,) = self.sequences
        assert rest is not None, "gradients have come"
        places = [(count, self.layout.dims[place]) for place, count, _ in self.layout.sequences]
        parts = rest.split([count * dim for count, dim in places])
        made = tuple(part.view(count, dim) for part, (count, dim) in zip(parts, places, strict=True))
        yield from Looked.occurrences(replace(self, sequences=made), table)


class DeviceAnswers:
    """The ids that all ranks have sent, and the vectors that go back.

    `told` int64 [world, n] has the counts that each rank told this one, `batches` the rows of its batch, `weighted`
    whether its bags have weights.
    """

    def __init__(self, holding: Holding, told: np.ndarray, batches: Sequence[int], weighted: Sequence[bool]) -> None:
        self.of, self.batches, self.weighted = holding, batches, weighted
        routes, units = holding.routes, len(holding.routes.bags)
        ends = np.cumsum([len(routes.copied), len(routes.rows), units])
        copied, rows, hot, sizes = np.split(told, ends, axis=1)
        self.counts = np.concatenate([rows[:, holding.rows], copied], axis=1)  # [world, asked]
        self.hot, self.sizes = hot[:, holding.bags], sizes[:, holding.bags]  # [world, bags]
        home = np.arange(routes.world)[:, None] == routes.rank
        self._sent = np.concatenate([rows[:, holding.rows], copied * home], axis=1)  # of which vectors go back
        self._cut()
        self._place()
        self.layout = self._layout()

    def _cut(self) -> None:
        """Words of each message, and where its parts begin among those of all."""
        bags = self.sizes.sum(1)
        lengths = (self.hot < 0).sum(1) * np.array(self.batches)
        packed = np.where(self.weighted, -(-bags // 2), 0)
        self.words: list[int] = (lengths + bags + packed + self.counts.sum(1)).tolist()
        self._firsts = np.cumsum([0, *self.words[:-1]])
        self._ids = self._firsts + lengths
        self._weights = self._ids + bags
        self._rest = self._weights + packed

    def _place(self) -> None:
        """Numbers of each message of vectors and of gradients, and the lines of rows that go back."""
        of, world, sent = self.of, len(self.batches), self._sent
        bags = np.array(self.batches) * of.bag_width
        self._bags_before = int(bags.sum())
        numbers = sent * of.widths
        self.floats: list[int] = (bags + numbers.sum(1)).tolist()
        self.gradient_floats: list[int] = (bags + self.counts @ of.widths + of.routes.apart).tolist()
        firsts = np.cumsum([0, *self.floats[:-1]]) + bags
        to = firsts[:, None] + np.cumsum(numbers, axis=1) - numbers
        begins = int(self.sizes.sum()) + (np.cumsum(self.counts) - self.counts.ravel()).reshape(self.counts.shape)
        self._copies: list[tuple[int, int, int]] = []  # of each kind of rows: lines, programs, alignment
        made = []
        for mine, fact in of.kinds:
            addresses = np.tile([of.asked[n].address for n in mine], (world, 1))
            lines = np.stack([addresses, begins[:, mine], sent[:, mine], to[:, mine]], axis=-1).reshape(-1, 4)
            programs = np.cumsum([0, *(-(-lines[:, 2] // rows_of_program(fact.dim)))])
            align = 1 if fact.dim % 4 or (lines[:, 3] % 4).any() else 4
            self._copies.append((len(lines), int(programs[-1]), align))
            made += [lines.ravel(), programs]
        joined = np.concatenate(made) if made else np.zeros(0, np.int64)
        self._lines = of.beside.sent(torch.from_numpy(joined))

    def _layout(self) -> Layout:
        of, bags = self.of, len(self.of.bags)
        counts = [*self.sizes.sum(0).tolist(), *self.counts.ravel().tolist()]
        self.starts = np.cumsum([0, *counts]).tolist()
        there = [r for r, batch in enumerate(self.batches) if batch]
        fixed = [set(self.hot[there, n].tolist()) for n in range(bags)]
        self._fixed = [found.pop() if len(found) == 1 and min(found) >= 0 else None for found in fixed]
        return of.shapes(tuple(self._fixed), sum(self.batches)).layout(self.starts[:-1], counts)

    def made_beside(self) -> tuple[Tensor, ...]:
        """What the stream that made it has sent to the device, and others read."""
        layout = self.layout
        return self._lines, layout.features, layout.maxima, layout.first_programs, layout.lists

    # -- ids that have come ---------------------------------------------------------------------------------

    def take(self, words: Tensor) -> None:
        """These are the words of all ranks."""
        of, weights = self.of, None
        values, offsets = words, words.new_empty(0, sum(self.batches) + 1)
        if len(of.bags):
            rest = [words[first : first + n] for first, n in zip(self._rest, self.counts.sum(1), strict=True)]
            values = torch.cat([*self._pieces(words, self._ids), *rest])
            offsets = self._offsets(words)
            weights = self._weights_of(words) if any(self.weighted) else None
        hotness = [*self._fixed, *[1] * (len(of.specs) - len(of.bags))]
        names = tuple(spec.name for spec in of.specs)
        block = IdBlock.trusted(names, values, tuple(self.starts), tuple(hotness), offsets, None, sum(self.batches))
        bag_of = torch.empty(0, dtype=torch.int32, device=values.device)
        self.looked = Answered(block, self.layout, of.specs, of.rows_of, weights, bag_of, None)
        self._rows_asked = self._ids_there = values
        self._copied = None

    def _pieces(self, values: Tensor, firsts: np.ndarray) -> list[Tensor]:
        """The runs of all bag units, of one after the other those of all ranks; `firsts` has where ranks begin."""
        begins = firsts[:, None] + np.cumsum(self.sizes, axis=1) - self.sizes
        spans = zip(begins.T.ravel().tolist(), self.sizes.T.ravel().tolist(), strict=True)
        return [values[begin : begin + size] for begin, size in spans]

    def _offsets(self, words: Tensor) -> Tensor:
        """Where bags begin, int64 [ragged units, all rows + 1]."""
        parts = []
        for n in (n for n, fixed in enumerate(self._fixed) if fixed is None):
            for rank, batch in enumerate(self.batches):
                hot = int(self.hot[rank, n])
                first = int(self._firsts[rank]) + int((self.hot[rank, :n] < 0).sum()) * batch
                parts.append(words[first : first + batch] if hot < 0 else words.new_full((batch,), hot))
        if not parts:
            return words.new_empty(0, sum(self.batches) + 1)
        lengths = torch.cat(parts).view(-1, sum(self.batches))
        return torch.nn.functional.pad(lengths.cumsum(1), (1, 0))

    def _weights_of(self, words: Tensor) -> Tensor:
        """A weight for each id; 1 where there is none."""
        made = torch.ones(self.starts[-1], device=words.device)
        numbers, parts = words.view(torch.float32), []
        pieces = iter(self._pieces(numbers, 2 * self._weights))
        for _ in range(len(self.of.bags)):
            for rank in range(len(self.batches)):
                piece = next(pieces)
                parts.append(piece if self.weighted[rank] else torch.ones_like(piece))
        torch.cat(parts, out=made[: int(self.sizes.sum())])
        return made

    def taken(self) -> tuple[Tensor | None, ...]:
        """What was made of them."""
        block = self.looked.block
        return block.values, block.offsets, self.looked.weights

    # -- looking up -----------------------------------------------------------------------------------------

    def look_up(self, keep: bool, mode: int = EVAL) -> Tensor:
        """The vectors for all ranks, float32 [sum of floats]; `keep` what a gradient will need."""
        of, pooled = self.of, None
        if of.tiers:
            self._ids_there, self.looked.flights = of.tiers.slots(self.looked.block)
        if of.admission:
            self._admit(mode)
        if of.tiers or of.admission:
            self.looked.look_for(self._ids_there)
        if len(of.bags):
            pooled = self._pool(keep)
            if not of.kinds:
                return pooled.view(-1)
        out = torch.empty(sum(self.floats), device=of.group.device)
        at = 0
        for (lines, programs, align), (_, fact) in zip(self._copies, of.kinds, strict=True):
            mine, first = self._lines[at : at + 4 * lines].view(-1, 4), self._lines[at + 4 * lines :]
            gather(self._ids_there, mine, first, programs, out, fact.dim, fact.dtype, align)
            at += 5 * lines + 1
        if pooled is not None:
            firsts = np.cumsum([0, *self.floats[:-1]]).tolist()
            for first, part in zip(firsts, pooled.split(list(self.batches)), strict=True):
                out[first : first + part.numel()].view_as(part).copy_(part)
        return out

    def _admit(self, mode: int) -> None:
        """Ids of dynamic tables become slots; all that ranks have sent are seen before any is let in."""
        looked, admission = self.looked, self.of.admission
        looked.ids = self._rows_asked
        given = looked.block, self._ids_there, mode != EVAL, mode == TRAIN
        self._ids_there, looked.eras = admission.slots(*given)
        admission.ask()

    def read(self) -> Tensor:
        """The same, where all ranks ask for rows of one table, in whichever tier these are, and for any number."""
        if not self.of.tiers:
            return self.look_up(False)
        store = self.of.group.tiered[self.of.specs[0].table]
        runs = zip(self.starts, self._sent[:, 0].tolist(), strict=False)
        rows = torch.cat([self._rows_asked[first : first + count] for first, count in runs])
        return store.lookup(store.share.id_of(rows)).flatten()

    def _pool(self, keep: bool) -> Tensor:
        looked = self.looked
        layout = replace(looked.layout, sequences=())
        given = looked.block.values, looked.block.offsets, looked.weights, layout
        pooled, _, looked.bag_of, looked.scales = pool(*given, self.of.faults, keep)
        looked.winners = largest(*given, pooled, self.of.faults, keep)
        return pooled

    # -- gradients ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Group the ids by row: a gradient will come."""
        of, looked, there, alone = self.of, self.looked, self._ids_there, self._ids_there
        if len(of.routes.copied) and of.routes.world > 1:
            rows = len(of.rows)
            begins = int(self.sizes.sum()) + np.cumsum(self.counts.sum(1)) - self.counts[:, rows:].sum(1)
            firsts = self._bags_before + np.cumsum(self.counts @ of.widths) - self.counts[:, rows:] @ of.widths[rows:]
            self._copied = Copies(there, self.counts[:, rows:], begins, firsts, of.widths[rows:])
            alone = self._copied.without_others(there)
        if of.padding:
            alone = self._without_padding(alone)
        if alone is not there:
            looked.look_for(alone)
        of.group.prepare(looked, read=self.made_beside())

    def _without_padding(self, ids: Tensor) -> Tensor:
        """Ids whose rows take no gradient lead to no row."""
        made, first, units = ids.clone(), len(self.of.bags), len(self.of.asked)
        for rank in range(len(self.batches)):
            for n, row in self.of.padding.items():
                at = first + rank * units + n
                mine = slice(self.starts[at], self.starts[at + 1])
                made[mine].masked_fill_(self._rows_asked[mine] == row, NO_ID)
        return made

    def queue(self, gradients: Tensor, tables: set[str], marked: bool) -> None:
        """Keep the gradients float32 [sum of gradient_floats] until the step of these tables.

        Where some are `marked` (`unfed.py`), their rows are passed over.
        """
        group = self.of.group
        rows, width = sum(self.batches), self.of.bag_width
        if self.looked.groups is None:  # the lookup was one of eval()
            self.prepare()
        numbers = self._ordered(gradients) if len(self.of.bags) or self.of.routes.apart else gradients
        if self._copied is not None:
            self._copied.fold(numbers)
        pooled, rest = numbers[: rows * width].view(rows, width), numbers[rows * width :]
        looked = replace(self.looked, numbers=numbers, flat=pooled, sequences=(rest,))
        if marked:
            looked.look_for(self._moved(looked.block.values, pooled, rest))
            group.prepare(looked, read=self.made_beside())
        group.queue(looked, (), tables)

    def _moved(self, ids: Tensor, pooled: Tensor, rest: Tensor) -> Tensor:
        """Ids, of which those lead to no row that gradients of bags and of the rest are marked for."""
        made, bags = ids.clone(), int(self.sizes.sum())
        made[:bags].masked_fill_(unmoved(pooled).all(), NO_ID)
        sizes, widths = self.counts.ravel().tolist(), np.tile(self.of.widths, len(self.batches)).tolist()
        parts = rest.split([size * width for size, width in zip(sizes, widths, strict=True)])
        for mine, part, width in zip(made[bags:].split(sizes), parts, widths, strict=True):
            mine.masked_fill_(unmoved(part.view(-1, width)), NO_ID)
        return made

    def largest(self, gradients: Tensor) -> Tensor:
        """The largest of what ranks have put behind their gradients."""
        return torch.stack([part[-1] for part in gradients.split(self.gradient_floats)]).max()

    def _ordered(self, gradients: Tensor) -> Tensor:
        """Those of bags of all ranks, then the rest."""
        parts = gradients.split(self.gradient_floats)
        parts = [part[:-1] for part in parts] if self.of.routes.apart else parts
        bags = [batch * self.of.bag_width for batch in self.batches]
        pairs = list(zip(parts, bags, strict=True))
        return torch.cat([*(part[:size] for part, size in pairs), *(part[size:] for part, size in pairs)])
