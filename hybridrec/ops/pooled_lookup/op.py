"""The fused lookup of many features as a torch operator: one call finds, pools and, in its backward, queues gradients.

Rows are not among its arguments: autograd would save them, and torch.compile would copy them. The operator is given the
number of a `Lookup`, which knows the tables, and an anchor, whose only purpose is to require a gradient.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hybridrec import _native
from hybridrec.ops.pooled_lookup.kept import floats_kept, keep_rows, with_kept
from hybridrec.types import IdBlock
from hybridrec.types.ragged import readable

if TYPE_CHECKING:
    from hybridrec.embedding.group import TableGroup
    from hybridrec.embedding.queue import FeatureSpec

SEPARATOR = "\0"  # between the names of features
EVAL, TRAIN, TRAIN_ONCE = 0, 1, 2  # the last: no gradient can come, so rows need not stay until a step
MOST_PLANS = 256

_lookups: weakref.WeakValueDictionary[int, Lookup] = weakref.WeakValueDictionary()
_traced = itertools.count()


class Lookup:
    """Looks up features of a group's tables: a block to the pooled features side by side, and the sequences.

    `remedy` is what an error advises for an id outside its table, where the table cannot be declared otherwise.
    """

    def __init__(self, group: TableGroup, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> None:
        self.group = group
        self.features = features
        self.remedy = remedy
        place = {name: i for i, name in enumerate(group.names)}
        self.tables = _native.TableSet(group.natives, [(place[f.table], f.combiner, f.group) for f in features])
        self.dims = [group.natives[place[f.table]].dim for f in features]
        self.sequences = [i for i, f in enumerate(features) if f.combiner == "none"]
        self.maxima = [i for i, f in enumerate(features) if f.combiner == "max"]
        self.padded = [i for i, f in enumerate(features) if f.padding is not None]
        self.dynamic = any(isinstance(table, _native.HashTable) for table in group.natives)
        self.tables_counted = len(group.names) if self.dynamic else 0  # tables whose removals matter
        self.growing = sorted({f.table for f in features if group.stores[f.table].table.dynamic})
        self.anchor = torch.zeros((), requires_grad=any(f.table in group.handles for f in features))
        self.no_anchor = torch.zeros(())  # where gradients are off: an exported model would complain of the other
        self.arena = _native.Arena.create()
        self._plans: dict[tuple[str, tuple[int, ...]], Plan] = {}
        self.number = _signature(group, features)
        _lookups[self.number] = self

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        hotness = [-1 if hot is None else hot for hot in block.hotness]
        layout = (block.starts, hotness, SEPARATOR.join(block.names), block.batch_size)
        return self._run(block.values, block.offsets, block.weights, layout, train)

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature, without the cost of a block; hotness is -1 where there are offsets."""
        layout = ((0, values.shape[0]), (hotness,), self.features[0].name, batch_size)
        return self._run(values, offsets, weights, layout, train)

    def _run(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, layout: tuple[Any, ...], train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        mode = EVAL if not train else TRAIN if torch.is_grad_enabled() else TRAIN_ONCE
        weights = None if weights is None else weights.contiguous()
        keep = torch.is_grad_enabled() and weights is not None and weights.requires_grad
        run = DirectLookup.apply if readable(values) else torch.ops.hybridrec.pooled_lookup
        anchor = self.anchor if torch.is_grad_enabled() else self.no_anchor
        out = run(values, offsets, weights, anchor, *layout, self.number, mode, keep)
        return out[0], out[1 : 1 + len(self.sequences)]

    def unheld(self, mode: int) -> list[int]:
        """The features whose rows may go before a backward call."""
        return [
            i
            for i, feature in enumerate(self.features)
            if feature.table in self.growing and (mode == EVAL or feature.table not in self.group.handles)
        ]

    def __reduce__(self) -> tuple:
        return Lookup, (self.group, self.features, self.remedy)

    def recycled(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """A tensor in memory that comes back when it goes: touching fresh memory costs more than filling it."""
        if prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        memory = self.arena.take(4 * prod(shape)).view(np.float32 if dtype == torch.float32 else np.int32)
        return torch.from_numpy(memory.reshape(shape))  # no view of another tensor, which could not change in place

    def pick(self, names: str) -> list[int]:
        """Where a block with these features has those that are looked up."""
        there = names.split(SEPARATOR)
        return [there.index(f.name) for f in self.features]

    def plan(self, names: str, hotness: Sequence[int]) -> Plan:
        """How to read blocks with these features."""
        kind = (names, tuple(hotness))
        if kind not in self._plans:
            if len(self._plans) == MOST_PLANS:  # batches padded to ever new lengths
                self._plans.clear()
            self._plans[kind] = Plan(self.pick(names), hotness)
        return self._plans[kind]


class Plan:
    """How a lookup reads blocks with certain features: what does not change from batch to batch."""

    def __init__(self, pick: list[int], hotness: Sequence[int]) -> None:
        self.pick = pick
        lines = list(itertools.accumulate((hot < 0 for hot in hotness), initial=0))
        self.layout = _native.BlockLayout(
            pick, [hotness[i] for i in pick], [lines[i] if hotness[i] < 0 else -1 for i in pick]
        )


def _signature(group: TableGroup, features: tuple[FeatureSpec, ...]) -> int:
    """A number for a lookup: of these tables and features, and of no other lookup now alive.

    An exported program that is loaded elsewhere finds the same tables by it, or none.
    """
    tables = [repr(store.table) for store in group.stores.values()]
    number = _native.xxh64(repr((features, tables)).encode()) >> 2
    while number in _lookups:
        number += 1
    return number


def _of(number: int) -> Lookup:
    lookup = _lookups.get(number)
    if lookup is None:
        raise RuntimeError(
            "the tables of this lookup are gone: a compiled or exported model needs its collection alive"
        )
    return lookup


def _outputs(
    lookup: Lookup, pick: list[int], values: Tensor, starts: Sequence[int], batch: int, kept: Sequence[int], new: Any
) -> list[Tensor]:
    """flat, sequences, slots, removals, kept rows and winners, as the operator returns them; `new(dtype, *shape)`."""
    sizes = [(starts[pick[i] + 1] - starts[pick[i]]) // lookup.features[i].group for i in lookup.sequences]
    dims = [lookup.dims[i] for i in lookup.sequences]
    sequences = [new(torch.float32, *shape) for shape in zip(sizes, dims, strict=True)]
    winners = [new(torch.int32, batch, lookup.dims[i]) for i in lookup.maxima]
    slots, removals = new(torch.int32, values.shape[0]), values.new_empty(lookup.tables_counted)
    rows = new(torch.float32, floats_kept(lookup, kept, pick, starts))
    return [new(torch.float32, batch, lookup.tables.width), *sequences, slots, removals, rows, *winners]


def _look_up(
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    anchor: Tensor,
    starts: Sequence[int],
    hotness: Sequence[int],
    names: str,
    batch_size: int,
    number: int,
    mode: int,
    keep: bool,
) -> list[Tensor]:
    """The pooled features [B, sum of dims], the sequences, and what the backward needs.

    To `keep` rows is for the gradient of weights; see `kept.py`.
    """
    lookup = _of(number)
    plan, kept = lookup.plan(names, hotness), lookup.unheld(mode) if keep else []
    out = _outputs(lookup, plan.pick, values, starts, batch_size, kept, lookup.recycled)
    flat, sequences, slots, removals, rows, winners = _apart(lookup, out)
    _native.set_threads(torch.get_num_threads())
    fault = lookup.tables.lookup(
        plan.layout,
        *(values.data_ptr(), starts, offsets.data_ptr(), _address(weights), batch_size, mode != EVAL),
        *(slots.data_ptr(), flat.data_ptr(), flat.stride(0), _addresses(sequences), _addresses(winners)),
        removals.data_ptr() if lookup.dynamic else 0,
    )
    if fault is not None:
        raise _explained(lookup, fault)
    keep_rows(lookup, kept, plan.pick, starts, slots, rows)
    if lookup.dynamic and mode != EVAL:
        lookup.group.looked_up(lookup.growing, mode == TRAIN)
    return out


pooled_lookup = torch.library.custom_op("hybridrec::pooled_lookup", _look_up, mutates_args=(), device_types="cpu")


@pooled_lookup.register_fake
def _(values, offsets, weights, anchor, starts, hotness, names, batch_size, number, mode, keep):
    lookup = _of(number)
    kept = lookup.unheld(mode) if keep else []

    def new(kind: torch.dtype, *shape: int) -> Tensor:
        return values.new_empty(shape, dtype=kind)

    return _outputs(lookup, lookup.pick(names), values, starts, batch_size, kept, new)


def _queue(
    grads: Sequence[Tensor | None],
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    state: Sequence[Tensor],
    starts: Sequence[int],
    hotness: Sequence[int],
    names: str,
    batch_size: int,
    number: int,
    copy: bool,
    traced: int,
) -> Tensor:
    """Hand the gradients of flat and sequences to the group, until its step; the gradient of the anchor, which is 0.

    `traced` differs from call to call in a compiled graph: torch would make one call of two that are the same.
    """
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    slots, removals, _, *winners = state
    slots = _without_padding(lookup, plan, values, starts, slots)
    flat, sequences = _gradients(grads, copy)
    if weights is not None and (copy or weights.requires_grad):  # their own step may come before that of the rows
        weights = weights.detach().clone()
    if copy:
        slots, winners = slots.clone(), [part.clone() for part in winners]
    native = _native.Pending(
        lookup.tables,
        plan.layout,
        *(values.data_ptr(), starts, offsets.data_ptr(), _address(weights), batch_size, slots.data_ptr()),
        *(_address(flat), 0 if flat is None else flat.stride(0), _addresses(sequences), _addresses(winners)),
        removals.tolist() if lookup.dynamic else [0] * len(lookup.group.names),
    )
    fed = {f.table for f in lookup.features if f.combiner != "none"} if flat is not None else set()
    for i, grad in zip(lookup.sequences, sequences, strict=True):
        if grad is not None:
            fed.add(lookup.features[i].table)
    lent = [flat, *sequences, offsets, weights, values if lookup.dynamic else None]
    lookup.group.queue(native, (lent, values, slots, winners), fed, [part for part in lent if part is not None])
    return torch.zeros(())


queue_gradients = torch.library.custom_op("hybridrec::queue_gradients", _queue, mutates_args=(), device_types="cpu")


@queue_gradients.register_fake
def _(grads, values, offsets, weights, state, starts, hotness, names, batch_size, number, copy, traced):
    return torch.zeros(())


def _weight_gradient(
    grads: Sequence[Tensor | None],
    flat: Tensor,
    values: Tensor,
    offsets: Tensor,
    weights: Tensor,
    state: Sequence[Tensor],
    starts: Sequence[int],
    hotness: Sequence[int],
    names: str,
    batch_size: int,
    number: int,
    mode: int,
) -> Tensor:
    """The gradient of the per-id weights: from rows that were kept, and others as they are now."""
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    slots, removals, rows, *winners = state
    slots, tables = _still_there(lookup, plan, values, starts, slots, removals), lookup.tables
    if len(rows):
        tables, slots = with_kept(lookup, lookup.unheld(mode), plan.pick, starts, slots, rows)
    mine, sequences = _gradients(grads, copy=False)
    result = torch.zeros_like(weights)
    _native.set_threads(torch.get_num_threads())
    tables.weight_gradient(
        plan.layout,
        *(values.data_ptr(), starts, offsets.data_ptr(), weights.data_ptr(), batch_size, slots.data_ptr()),
        *(flat.data_ptr(), flat.stride(0), _addresses(winners)),
        *(_address(mine), 0 if mine is None else mine.stride(0), _addresses(sequences), result.data_ptr()),
    )
    return result


weight_gradient = torch.library.custom_op(
    "hybridrec::weight_gradient", _weight_gradient, mutates_args=(), device_types="cpu"
)


@weight_gradient.register_fake
def _(grads, flat, values, offsets, weights, state, starts, hotness, names, batch_size, number, mode):
    return torch.empty_like(weights)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.set_materialize_grads(False)  # an output without a gradient touches no row
    values, offsets, weights, _, *ctx.block, ctx.mode, _ = inputs
    ctx.sequences, ctx.weighted = len(_of(ctx.block[-1]).sequences), weights is not None
    saved = [values, offsets, *output[1 + ctx.sequences :]]
    if weights is not None:
        saved += [weights, output[0].detach() if weights.requires_grad else weights]
    ctx.save_for_backward(*saved)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    values, offsets, *state = ctx.saved_tensors
    weights: Any = None
    flat: Any = None
    if ctx.weighted:
        *state, weights, flat = state
    mine = list(grads[: 1 + ctx.sequences])
    common: tuple[Any, ...] = (values, offsets, weights, state, *ctx.block)
    of_weights = of_anchor = None
    direct = readable(values)
    if ctx.needs_input_grad[2]:
        weigh: Any = _weight_gradient if direct else torch.ops.hybridrec.weight_gradient
        of_weights = weigh(mine, flat, *common, ctx.mode)
    if ctx.needs_input_grad[3] and (of_weights is None or not direct or accumulates(_of(ctx.block[-1]).anchor)):
        queue: Any = _queue if direct else torch.ops.hybridrec.queue_gradients
        # compiled code may use the memory of a gradient again before the step, so it copies
        of_anchor = queue(mine, *common, not direct, 0 if direct else next(_traced))
    return None, None, of_weights, of_anchor, *[None] * 7


def accumulates(anchor: Tensor) -> bool:
    """Whether the backward at work leaves gradients in leaves; torch.autograd.grad, asked for others, does not."""
    edge = torch.autograd.graph.get_gradient_edge(anchor)
    try:
        return torch._C._will_engine_execute_node(edge.node)
    except RuntimeError:  # the anchor is what was asked for
        return True


pooled_lookup.register_autograd(_backward, setup_context=_setup)


class DirectLookup(torch.autograd.Function):
    """The operator for tensors that are there, without torch's dispatcher: that costs more than a small lookup."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        out = _look_up(*inputs)
        _setup(ctx, inputs, out)
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return _backward(ctx, list(grads))


def _without_padding(lookup: Lookup, plan: Plan, values: Tensor, starts: Sequence[int], slots: Tensor) -> Tensor:
    """The slots that take a gradient: those of padding are missing."""
    slots = slots.clone() if lookup.padded else slots
    for i in lookup.padded:
        mine = slice(starts[plan.pick[i]], starts[plan.pick[i] + 1])
        slots[mine].masked_fill_(values[mine] == lookup.features[i].padding, -1)
    return slots


def _still_there(
    lookup: Lookup, plan: Plan, values: Tensor, starts: Sequence[int], slots: Tensor, removals: Tensor
) -> Tensor:
    """The slots whose rows belong to their ids as they did in the forward call; others are missing."""
    if not lookup.dynamic or lookup.tables.removals() == removals.tolist():
        return slots
    slots = slots.clone()
    for i, feature in enumerate(lookup.features):
        if feature.table in lookup.growing:
            mine = slice(starts[plan.pick[i]], starts[plan.pick[i] + 1])
            now = lookup.group.stores[feature.table]._find(values[mine]).view(torch.int32)
            slots[mine].masked_fill_(now != slots[mine], -1)
    return slots


def _apart(lookup: Lookup, out: list[Tensor]) -> tuple[Tensor, list[Tensor], Tensor, Tensor, Tensor, list[Tensor]]:
    cut = 1 + len(lookup.sequences)
    return out[0], out[1:cut], out[cut], out[cut + 1], out[cut + 2], out[cut + 3 :]


def _gradients(grads: Sequence[Tensor | None], copy: bool) -> tuple[Tensor | None, list[Tensor | None]]:
    """Those of flat and of the sequences; the rows of a sequence lie without gaps between them."""
    flat, *sequences = [_readable(grad, copy) for grad in grads]
    return flat, [None if grad is None else grad.contiguous() for grad in sequences]


def _readable(grad: Tensor | None, copy: bool) -> Tensor | None:
    """A gradient as native code reads it: float32, the columns of a row side by side."""
    if grad is None:
        return None
    grad = grad.float()
    return grad.contiguous() if grad.stride(-1) != 1 else grad.clone() if copy else grad


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [_address(tensor) for tensor in tensors]


def _explained(lookup: Lookup, fault: tuple[str, int, int, int, str]) -> ValueError:
    from hybridrec.embedding.hash_store import full_error
    from hybridrec.embedding.out_of_range import out_of_range_error

    what, number, position, value, message = fault
    tables = {name: store.table for name, store in lookup.group.stores.items()}
    if what == "capacity":
        return full_error(tables[lookup.group.names[number]], message)
    feature = lookup.features[number]
    if what == "range":
        return out_of_range_error(tables[feature.table], feature.name, position, value, lookup.remedy)
    return ValueError(
        f"offsets of feature {feature.name!r} must not decrease and must end with its ids, but row {position} starts "
        f"at {value}"
    )
