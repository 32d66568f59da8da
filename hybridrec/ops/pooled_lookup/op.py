"""The fused lookup of many features as a torch operator: one call finds, pools and, in its backward, queues gradients.

Rows are not among its arguments: autograd would save them, and torch.compile would copy them. The operator is given the
number of a `Lookup`, which knows the tables, and an anchor, whose only purpose is to require a gradient.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.types import IdBlock

if TYPE_CHECKING:
    from hybridrec.embedding.group import FeatureSpec, TableGroup

SEPARATOR = "\0"  # between the names of features
EVAL, TRAIN, TRAIN_ONCE = 0, 1, 2  # the last: no gradient can come, so rows need not stay until a step

_lookups: weakref.WeakValueDictionary[int, Lookup] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Lookup:
    """Looks up features of a group's tables: a block to the pooled features side by side, and the sequences."""

    def __init__(self, group: TableGroup, features: tuple[FeatureSpec, ...]) -> None:
        self.group = group
        self.features = features
        place = {name: i for i, name in enumerate(group.names)}
        self.tables = _native.TableSet(group.natives, [(place[f.table], f.combiner, f.group) for f in features])
        self.dims = [group.natives[place[f.table]].dim for f in features]
        self.sequences = [i for i, f in enumerate(features) if f.combiner == "none"]
        self.maxima = [i for i, f in enumerate(features) if f.combiner == "max"]
        self.dynamic = any(isinstance(table, _native.HashTable) for table in group.natives)
        self.anchor = torch.zeros((), requires_grad=any(f.table in group.handles for f in features))
        self.arena = _native.Arena.create()
        self._plans: dict[tuple[str, tuple[int, ...]], Plan] = {}
        self.number = next(_numbers)
        _lookups[self.number] = self

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, list[Tensor]]:
        mode = EVAL if not train else TRAIN if torch.is_grad_enabled() else TRAIN_ONCE
        hotness = [-1 if hot is None else hot for hot in block.hotness]
        out = torch.ops.hybridrec.pooled_lookup(
            *(block.values, block.offsets, block.weights, self.anchor, block.starts, hotness, SEPARATOR.join(block.names)),
            *(block.batch_size, self.number, mode),
        )
        return out[0], out[1 : 1 + len(self.sequences)]

    def plan(self, names: str, hotness: Sequence[int]) -> Plan:
        """How to read blocks with these features."""
        kind = (names, tuple(hotness))
        if kind not in self._plans:
            self._plans[kind] = Plan(self, names.split(SEPARATOR), hotness)
        return self._plans[kind]


class Plan:
    """How a lookup reads blocks with certain features: what does not change from batch to batch."""

    def __init__(self, lookup: Lookup, names: list[str], hotness: Sequence[int]) -> None:
        self.pick = [names.index(f.name) for f in lookup.features]
        lines = list(itertools.accumulate((hot < 0 for hot in hotness), initial=0))
        self.layout = _native.BlockLayout(
            self.pick, [hotness[i] for i in self.pick], [lines[i] if hotness[i] < 0 else -1 for i in self.pick]
        )

    def shapes(self, starts: Sequence[int], lookup: Lookup) -> list[tuple[int, int]]:
        """Of the sequences, one per feature that is not pooled."""
        sizes = [starts[self.pick[i] + 1] - starts[self.pick[i]] for i in lookup.sequences]
        return [(n // lookup.features[i].group, lookup.dims[i]) for n, i in zip(sizes, lookup.sequences, strict=True)]


def _of(number: int) -> Lookup:
    lookup = _lookups.get(number)
    if lookup is None:
        raise RuntimeError("the tables of this lookup are gone: a compiled or exported model needs its collection alive")
    return lookup


def _outputs(lookup: Lookup, plan: Plan, values: Tensor, starts: Sequence[int], batch: int, flat: Any) -> list[Tensor]:
    """flat, sequences, slots, removals and winners: the order of what the operator returns."""
    new = values.new_empty
    sequences = [new(shape, dtype=torch.float32) for shape in plan.shapes(starts, lookup)]
    winners = [new((batch, lookup.dims[i]), dtype=torch.int32) for i in lookup.maxima]
    slots, removals = new(values.shape, dtype=torch.int32), new(len(lookup.group.names) if lookup.dynamic else 0)
    return [flat(batch, lookup.tables.width), *sequences, slots, removals, *winners]


@torch.library.custom_op("hybridrec::pooled_lookup", mutates_args=(), device_types="cpu")
def pooled_lookup(
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
) -> list[Tensor]:
    """The pooled features [B, sum of dims], the sequences, and what the backward needs."""
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    out = _outputs(lookup, plan, values, starts, batch_size, lambda *shape: _recycled(lookup.arena, *shape))
    flat, sequences, slots, removals, winners = _apart(lookup, out)
    _native.set_threads(torch.get_num_threads())
    fault = lookup.tables.lookup(
        plan.layout,
        *(values.data_ptr(), starts, offsets.data_ptr(), _address(weights), batch_size, mode != EVAL),
        *(slots.data_ptr(), flat.data_ptr(), flat.stride(0), _addresses(sequences), _addresses(winners)),
    )
    if fault is not None:
        raise _explained(lookup, fault)
    if lookup.dynamic:
        removals.copy_(torch.tensor(lookup.tables.removals()))
        if mode == TRAIN_ONCE:
            lookup.tables.advance()
    return out


@pooled_lookup.register_fake
def _(values, offsets, weights, anchor, starts, hotness, names, batch_size, number, mode):
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    return _outputs(lookup, plan, values, starts, batch_size, lambda *s: values.new_empty(s, dtype=torch.float32))


@torch.library.custom_op("hybridrec::queue_gradients", mutates_args=(), device_types="cpu")
def queue_gradients(
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
) -> Tensor:
    """Hand the gradients of flat and sequences to the group, until its step; the gradient of the anchor, which is 0."""
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    slots, removals, *winners = state
    flat, *sequences = [_readable(grad, copy) for grad in grads]
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
    lookup.group.queue(native, (flat, sequences, values, offsets, weights, state), fed)
    return torch.zeros(())


@queue_gradients.register_fake
def _(grads, values, offsets, weights, state, starts, hotness, names, batch_size, number, copy):
    return torch.zeros(())


@torch.library.custom_op("hybridrec::weight_gradient", mutates_args=(), device_types="cpu")
def weight_gradient(
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
) -> Tensor:
    """The gradient of the per-id weights, from the rows as they are now."""
    lookup = _of(number)
    plan = lookup.plan(names, hotness)
    slots, _, *winners = state
    mine, *sequences = [_readable(grad, False) for grad in grads]
    result = torch.zeros_like(weights)
    _native.set_threads(torch.get_num_threads())
    lookup.tables.weight_gradient(
        plan.layout,
        *(values.data_ptr(), starts, offsets.data_ptr(), weights.data_ptr(), batch_size, slots.data_ptr()),
        *(flat.data_ptr(), flat.stride(0), _addresses(winners)),
        *(_address(mine), 0 if mine is None else mine.stride(0), _addresses(sequences), result.data_ptr()),
    )
    return result


@weight_gradient.register_fake
def _(grads, flat, values, offsets, weights, state, starts, hotness, names, batch_size, number):
    return torch.empty_like(weights)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    values, offsets, weights, _, *ctx.block, _ = inputs
    ctx.sequences, ctx.weighted = len(_of(ctx.block[-1]).sequences), weights is not None
    saved = [values, offsets, *output[1 + ctx.sequences :]]
    if weights is not None:
        saved += [weights, output[0].detach() if weights.requires_grad else weights]
    ctx.save_for_backward(*saved)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    values, offsets, *state = ctx.saved_tensors
    weights = flat = None
    if ctx.weighted:
        *state, weights, flat = state
    mine = list(grads[: 1 + ctx.sequences])
    common = (values, offsets, weights, state, *ctx.block)
    of_weights = of_anchor = None
    if ctx.needs_input_grad[2]:
        of_weights = torch.ops.hybridrec.weight_gradient(mine, flat, *common)
    if ctx.needs_input_grad[3]:  # compiled code may use the memory of a gradient again before the step
        of_anchor = torch.ops.hybridrec.queue_gradients(mine, *common, torch.compiler.is_compiling())
    return None, None, of_weights, of_anchor, *[None] * 6


pooled_lookup.register_autograd(_backward, setup_context=_setup)


def _apart(lookup: Lookup, out: list[Tensor]) -> tuple[Tensor, list[Tensor], Tensor, Tensor, list[Tensor]]:
    cut = 1 + len(lookup.sequences)
    return out[0], out[1:cut], out[cut], out[cut + 1], out[cut + 2 :]


def _recycled(arena: _native.Arena, batch: int, width: int) -> Tensor:
    """A float32 tensor in memory that comes back when it goes: first-touching fresh memory costs more than filling it."""
    if batch * width == 0:
        return torch.empty(batch, width)
    return torch.from_numpy(arena.take(4 * batch * width)).view(torch.float32).view(batch, width)


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
        return out_of_range_error(tables[feature.table], feature.name, position, value)
    return ValueError(
        f"offsets of feature {feature.name!r} must not decrease and must end with its ids, but row {position} starts at {value}"
    )
