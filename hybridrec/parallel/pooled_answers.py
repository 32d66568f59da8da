"""PooledAnswers: from the vectors that ranks answer with to the output of a lookup, and gradients the same way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec.parallel.rank_lookup import fed_tables
from hybridrec.parallel.unfed import mark, unfed_parts
from hybridrec.parallel.way import Flight


class PooledAnswers(torch.autograd.Function):
    """From the vectors that ranks answer with to the output; its only inputs with a gradient are anchor and weights."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, weights: Tensor | None, lookup: Any, flight: Any, mode: int) -> Any:
        way, request, ids = flight.way, flight.request, flight.ids
        runs = lookup.runs(flight, mode)
        way.show(runs)
        flat = lookup.recycled(torch.float32, ids.batch, way.pool.width)
        sequences = [lookup.recycled(torch.float32, *shape) for shape in way.sequence_shapes(request)]
        winners = [torch.empty(ids.batch, way.routes.parts[p].piece.width, dtype=torch.int32) for p in way.maxima]
        slots, spread = lookup.recycled(torch.int32, len(request.positions)), _spread(weights, flight)
        outputs = slots.data_ptr(), flat.data_ptr(), flat.stride(0), _all(sequences), _all(winners), 0
        fault = way.pool.lookup(way.layout(ids), *_place(flight, spread), False, *outputs)
        assert fault is None, f"what a request has checked is wrong: {fault}"
        ctx.set_materialize_grads(False)
        ctx.lookup, ctx.flight, ctx.winners, ctx.spread, ctx.slots = lookup, flight, winners, spread, slots
        ctx.weighted = weights is not None and weights.requires_grad
        if ctx.weighted:
            ctx.runs, ctx.flat = runs, flat.detach()
        return flat, *sequences

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        flat, *sequences = [_readable(grad) for grad in grads]
        sequences = [None if grad is None else grad.contiguous() for grad in sequences]
        given = _address(flat), 0 if flat is None else flat.stride(0), _all(sequences)
        of_weights = _weight_gradient(ctx, given) if ctx.weighted else None
        if not ctx.needs_input_grad[0]:
            return None, of_weights, None, None, None
        way, sums = ctx.flight.way, _sums(ctx, given)
        tables = fed_tables(way.routes, way.sequences, flat, sequences)
        unfed = unfed_parts(way.routes, way.sequences, flat, sequences, tables)
        if unfed:
            _mark(ctx.flight, sums, unfed)
        ctx.lookup.send_gradients(ctx.flight, sums, tables, bool(unfed))
        return torch.zeros(()), of_weights, None, None, None


def _place(flight: Flight, spread: Tensor | None) -> tuple[Any, ...]:
    """Where native code finds the positions of vectors, and what it must know of the bags."""
    request, ids = flight.request, flight.ids
    return request.positions.data_ptr(), request.starts, ids.offsets.data_ptr(), _address(spread), ids.batch


def _weight_gradient(ctx: Any, given: tuple[Any, ...]) -> Tensor:
    """The gradient of the weights of ids, from the vectors as they came."""
    way, flight = ctx.flight.way, ctx.flight
    way.show(ctx.runs)
    made = torch.zeros(len(flight.request.positions))
    outputs = ctx.slots.data_ptr(), ctx.flat.data_ptr(), ctx.flat.stride(0), _all(ctx.winners)
    way.pool.weight_gradient(way.layout(flight.ids), *_place(flight, ctx.spread), *outputs, *given, made.data_ptr())
    return _gathered(made, flight)


def _sums(ctx: Any, given: tuple[Any, ...]) -> list[Tensor]:
    """Gradients summed by the vectors that had come, one run for each width; they count by this rank's share."""
    way, flight = ctx.flight.way, ctx.flight
    shapes = zip(flight.request.class_rows.tolist(), way.routes.widths, strict=True)
    sums = [ctx.lookup.recycled(torch.float32, rows * width) for rows, width in shapes]
    way.show(sums)
    place = _place(flight, ctx.spread)
    slots, winners = ctx.slots.data_ptr(), _all(ctx.winners)
    way.pool.sum_gradients(way.layout(flight.ids), *place, slots, winners, *given, flight.share, way.groups)
    return sums


def _mark(flight: Flight, sums: list[Tensor], unfed: frozenset[int]) -> None:
    """Let vectors that only these parts had asked for be without a gradient."""
    parts, starts = flight.way.routes.parts, flight.request.starts
    for run, width in zip(sums, flight.way.routes.widths, strict=True):
        fed = [p for p, part in enumerate(parts) if p not in unfed and part.piece.width == width]
        mark(run.view(-1, width), (flight.request.positions[starts[p] : starts[p + 1]] for p in fed))


def _spread(weights: Tensor | None, flight: Flight) -> Tensor | None:
    """The weight of each position; bags that were pooled elsewhere have 1."""
    if weights is None:
        return None
    routes, request, values = flight.way.routes, flight.request, weights.detach()
    parts = [
        torch.ones(flight.ids.batch) if part.kind == "bags" else values[slice(*flight.ids.span(part.feature))]
        for part in routes.parts
    ]
    assert sum(map(len, parts)) == len(request.positions)
    return torch.cat(parts) if parts else torch.empty(0)


def _gathered(of_positions: Tensor, flight: Flight) -> Tensor:
    """Gradients of the weights of positions, added up where several pieces have one feature."""
    made = torch.zeros(len(flight.ids.values))
    for part, start in zip(flight.way.routes.parts, flight.request.starts, strict=False):
        first, last = flight.ids.span(part.feature)
        made[first:last] += of_positions[start : start + last - first]
    return made


def _readable(grad: Tensor | None) -> Tensor | None:
    if grad is None:
        return None
    grad = grad.float()
    return grad if grad.stride(-1) == 1 else grad.contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _all(tensors: Sequence[Tensor | None]) -> list[int]:
    return [_address(tensor) for tensor in tensors]
