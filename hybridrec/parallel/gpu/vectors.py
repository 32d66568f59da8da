"""Vectors that have come from all ranks: pooled on the GPU as rows of a table for each width, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.embedding.gpu.layout import MOST_LAYOUTS, Shapes, TableFacts
from hybridrec.embedding.gpu.lookup import NO_FAULT, Looked
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.pooled_lookup.triton import pool
from hybridrec.ops.pooled_lookup.triton_max import largest
from hybridrec.ops.pooled_lookup.triton_weights import weight_gradient
from hybridrec.ops.row_groups.triton import Sizes, group_rows
from hybridrec.ops.row_update.numbers import of
from hybridrec.ops.row_update.triton import update_groups
from hybridrec.ops.zeros_again import zeros_again
from hybridrec.parallel.gpu.asking import Asking
from hybridrec.parallel.gpu.request import DeviceRequest, bag_widths
from hybridrec.parallel.unfed import NOTHING, mark, unfed_parts
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.parallel.gpu.lookup import DeviceFlight, DeviceShardedLookup


class Pooling:
    """How what has come is pooled and put together. Made once per lookup."""

    def __init__(self, asking: Asking, device: torch.device, sizes: Sizes) -> None:
        self.asking, self.routes, self.device, self.sizes = asking, asking.routes, device, sizes
        routes = self.routes
        parts = [routes.parts[p] for p in asking.parts]
        self.places = [routes.widths.index(part.piece.width) for part in parts]
        self.specs = tuple(
            FeatureSpec(
                f"part {n}",
                f"width {place}",
                routes.features[part.feature].combiner,
                routes.features[part.feature].group,
            )
            for n, (part, place) in enumerate(zip(parts, self.places, strict=True))
        )
        self.sequences = [p for p, spec in zip(asking.parts, self.specs, strict=True) if spec.combiner == "none"]
        self.bag_widths = bag_widths(routes)
        self.columns = self._columns()
        self._rows = torch.zeros(0, dtype=torch.int32, device=device)  # zeros, and so again after each use
        self._partial = torch.zeros(0, device=device)
        self._faults = torch.full((len(self.specs),), NO_FAULT, device=device)  # nobody looks: ids were checked
        self._shapes: dict[object, Shapes] = {}

    def _columns(self) -> list[tuple[int, int, int]]:
        """Of each pooled part, in the order of the output: the rank that it comes from (-1: pooled here), columns."""
        routes, found, here = self.routes, [], 0
        held = [routes.bags.widths[mine] for mine in routes.bags.held]
        for p, part in enumerate(routes.parts):
            width = part.piece.width
            if part.kind == "bags":
                rank = part.piece.holders[0]
                at = int(held[rank][: int(np.searchsorted(routes.bags.held[rank], part.unit))].sum())
                found.append((rank, at, at + width))
            elif p not in self.sequences:
                found.append((-1, here, here + width))
                here += width
        return found

    # -- what has come --------------------------------------------------------------------------------------

    def tables(self, request: DeviceRequest, vectors: Tensor) -> list[Tensor]:
        """The rows that have come, [n, width] for each width."""
        widths, home = self.routes.widths, self.routes.rank
        if (
            len(widths) == 1
            and not self.bag_widths.any()
            and (not request.rows[0, -1] or home == self.routes.world - 1)
        ):
            return [vectors.view(-1, widths[0])]
        runs: list[list[Tensor]] = [[] for _ in widths]
        copies: list[list[Tensor]] = [[] for _ in widths]
        for rank, part in enumerate(vectors.split(request.floats)):
            at = request.block.batch_size * int(self.bag_widths[rank])
            for to, column in [(runs, rank), (copies, -1)] if rank == home else [(runs, rank)]:
                for place, width in enumerate(widths):
                    size = int(request.rows[place, column]) * width
                    to[place].append(part[at : at + size])
                    at += size
        return [torch.cat([*runs[c], *copies[c]]).view(-1, width) for c, width in enumerate(widths)]

    def bags(self, request: DeviceRequest, vectors: Tensor) -> dict[int, Tensor]:
        """The pooled bags that have come, [rows, columns] by rank."""
        batch, parts = request.block.batch_size, vectors.split(request.floats)
        return {
            rank: parts[rank][: batch * int(width)].view(batch, int(width))
            for rank, width in enumerate(self.bag_widths)
            if width
        }

    def joined(self, pooled: Tensor, bags: dict[int, Tensor]) -> Tensor:
        """The output: what was pooled here and elsewhere, side by side."""
        if not bags:
            return pooled
        return torch.cat([(pooled if rank < 0 else bags[rank])[:, a:b] for rank, a, b in self.columns], 1)

    def apart(self, grad: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The opposite, for the gradient of the output."""
        if not self.bag_widths.any():
            return grad, {}
        found: dict[int, list[tuple[int, Tensor]]] = {}
        pieces = grad.split([b - a for _, a, b in self.columns], 1)
        for (rank, a, _), piece in zip(self.columns, pieces, strict=True):
            found.setdefault(rank, []).append((a, piece))
        made = {
            rank: torch.cat([p for _, p in sorted(mine, key=lambda each: each[0])], 1) for rank, mine in found.items()
        }
        return made.pop(-1, grad[:, :0]), made

    # -- pooling --------------------------------------------------------------------------------------------

    def look(self, request: DeviceRequest, tables: Sequence[Tensor], weights: Tensor | None) -> Looked:
        """The positions of ids as a lookup in these tables."""
        shape, block = request.shape, request.block
        parts = [self.routes.parts[p] for p in self.asking.parts]
        counts = [b - a for a, b in zip(shape.starts, shape.starts[1:], strict=False)]
        hotness = [None if (hot := request.hot(part.feature)) < 0 else hot for part in parts]
        lines = tuple(max(0, request.line(part.feature)) for part in parts)
        sizes = list(map(len, tables))
        firsts = np.cumsum([0, *sizes[:-1]])
        rows = np.stack([[table.data_ptr() for table in tables], sizes, firsts], 1)[self.places] if tables else None
        layout = self._shaped(tuple(hotness), lines, block.batch_size).layout(shape.starts[:-1], counts, rows)
        names = tuple(spec.name for spec in self.specs)
        inner = IdBlock.trusted(
            names, request.positions, tuple(shape.starts), tuple(hotness), block.offsets, weights, block.batch_size
        )
        rows_of = {f"width {n}": len(table) for n, table in enumerate(tables)}
        bag_of = torch.empty(0, dtype=torch.int32, device=self.device)
        return Looked(inner, layout, self.specs, rows_of, weights, bag_of, None)

    def _shaped(self, hotness: tuple[int | None, ...], lines: tuple[int, ...], batch: int) -> Shapes:
        """Layouts over any tables of these widths."""
        kind = hotness, lines, batch
        if kind not in self._shapes:
            if len(self._shapes) >= MOST_LAYOUTS:
                self._shapes.clear()
            facts = [TableFacts(n, 0, 0, 0, self.routes.widths[n], torch.float32) for n in self.places]
            self._shapes[kind] = Shapes(self.specs, facts, hotness, lines, batch, self.device, self.sizes)
        return self._shapes[kind]

    def pool(self, looked: Looked, keep: bool) -> tuple[Tensor, list[Tensor]]:
        """Pooled features and sequences; what a gradient needs stays in `looked` if it is to `keep` it."""
        if not self.specs:
            return torch.empty(looked.block.batch_size, 0, device=self.device), []
        given = looked.block.values, looked.block.offsets, looked.weights, looked.layout
        pooled, sequences, looked.bag_of, looked.scales = pool(*given, self._faults, keep)
        looked.winners = largest(*given, pooled, self._faults, keep)
        return pooled, sequences

    def sums(self, looked: Looked, rows: Sequence[int]) -> list[Tensor]:
        """The gradients of a lookup summed by the rows of its tables, of which there are so many."""
        made = [
            torch.empty(count, width, device=self.device) for count, width in zip(rows, self.routes.widths, strict=True)
        ]
        if not self.specs:
            return made
        if torch.are_deterministic_algorithms_enabled():
            return [self._plain_sum(looked, n, table) for n, table in enumerate(made)]
        firsts = np.cumsum([0, *rows]).tolist()
        if len(self._rows) < firsts[-1]:
            self._rows = torch.zeros(firsts[-1], dtype=torch.int32, device=self.device)
        lines = [firsts[:-1], *([part.data_ptr(), 0, 0] for part in made)]
        there = torch.tensor([number for line in lines for number in line]).to(self.device, non_blocking=True)
        bases, addresses = there[: len(made)], there[len(made) :].view(-1, of.ADDRESSES)
        given = looked.bag_of, looked.scales, looked.weights
        with zeros_again(self._rows):
            groups = group_rows(looked.block.values, looked.layout, self._rows, bases, *given)
        gradient, nothing = looked.gradient(), torch.empty(0, device=self.device)
        for number in range(len(looked.layout.classes)):
            partial = self._zeros(looked.layout.sums(number))
            with zeros_again(partial):
                update_groups(
                    groups, gradient, partial, number, "sum", addresses, nothing, nothing, nothing, norm=False
                )
        return made

    def mark(
        self, request: DeviceRequest, sums: Sequence[Tensor], bags: dict[int, Tensor], unfed: frozenset[int]
    ) -> None:
        """Let vectors and bags that only these parts had asked for be without a gradient."""
        starts, asked = request.shape.starts, list(zip(self.asking.parts, self.places, strict=True))
        for number, table in enumerate(sums):
            fed = [n for n, (p, place) in enumerate(asked) if p not in unfed and place == number]
            mark(table, (request.positions[starts[n] : starts[n + 1]] for n in fed))
        for rank, table in bags.items():
            bags[rank] = table + 0.0 if unfed.isdisjoint(self.asking.bags) else torch.full_like(table, NOTHING)

    def _plain_sum(self, looked: Looked, number: int, made: Tensor) -> Tensor:
        made.zero_()
        for rows, grads in looked.occurrences(f"width {number}"):
            made.index_add_(0, rows, grads)
        return made

    def _zeros(self, numbers: int) -> Tensor:
        """For sums of rows with many occurrences; kept, since kernels leave zeros behind."""
        if len(self._partial) < numbers:
            self._partial = torch.zeros(numbers, device=self.device)
        return self._partial


class PooledVectors(torch.autograd.Function):
    """From the vectors that ranks answer with to the output; its only inputs with a gradient are anchor and weights."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, weights: Tensor | None, lookup: DeviceShardedLookup, flight: DeviceFlight
    ) -> Any:
        pooling, request = flight.way.pooling, flight.request
        vectors = lookup.answered(flight)
        keep = any(ctx.needs_input_grad[:2])
        tables = pooling.tables(request, vectors)
        looked = pooling.look(request, tables, None if weights is None else flight.spread(weights.detach()))
        pooled, sequences = pooling.pool(looked, keep)
        ctx.set_materialize_grads(False)
        if keep:
            ctx.lookup, ctx.flight, ctx.looked, ctx.shapes = lookup, flight, looked, [part.shape for part in sequences]
            ctx.rows = [len(table) for table in tables]
            ctx.for_weights = (
                (pooled.detach(), tables) if ctx.needs_input_grad[1] else None
            )  # whose gradient reads the rows
        return pooling.joined(pooled, pooling.bags(request, vectors)), *sequences

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        pooling, flight = ctx.flight.way.pooling, ctx.flight
        flat, *sequences = (None if grad is None else grad.float() for grad in grads)
        tables = flight.way.fed(flat, sequences)
        unfed = unfed_parts(pooling.routes, pooling.sequences, flat, sequences, tables)
        if flat is None:
            width = sum(b - a for _, a, b in pooling.columns)
            flat = torch.zeros(flight.request.block.batch_size, width, device=pooling.device)
        pooled, bags = pooling.apart(flat)
        filled = [
            torch.zeros(shape, device=pooling.device) if grad is None else grad.contiguous()
            for grad, shape in zip(sequences, ctx.shapes, strict=True)
        ]
        looked = replace(ctx.looked, flat=pooled.contiguous(), sequences=tuple(filled))
        of_weights = None
        if ctx.for_weights is not None:
            of_weights = flight.gathered(weight_gradient(looked, ctx.for_weights[0]))
        if not ctx.needs_input_grad[0]:
            return None, of_weights, None, None
        sums = pooling.sums(looked, ctx.rows)
        if unfed:
            pooling.mark(flight.request, sums, bags, unfed)
        ctx.lookup.send_gradients(flight, sums, bags, tables, bool(unfed))
        return None, of_weights, None, None  # nobody asks for the anchor's own, which would be launches of zeros
