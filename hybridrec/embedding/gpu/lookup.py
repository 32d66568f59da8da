"""The fused lookup of many features on a GPU: one launch per dimension finds and pools, the backward queues gradients.

While the model computes, another stream groups the ids by row, so that the step finds them ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from hybridrec.embedding.columns import Columns
from hybridrec.embedding.gpu.dynamic import Admission
from hybridrec.embedding.gpu.fixed_slots import FixedSlots, capturing
from hybridrec.embedding.gpu.kept import with_kept
from hybridrec.embedding.gpu.layout import MOST_LAYOUTS, Layout, Shapes, TableFacts
from hybridrec.embedding.gpu.replay import Replay
from hybridrec.embedding.gpu.tiers import Tiers, spread
from hybridrec.embedding.out_of_range import REMEDY, remedy_for
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.ops.id_hash.triton import hash_outside
from hybridrec.ops.pooled_lookup.op import accumulates
from hybridrec.ops.pooled_lookup.triton import pool
from hybridrec.ops.pooled_lookup.triton_max import largest, occurrence_gradients
from hybridrec.ops.pooled_lookup.triton_weights import weight_gradient
from hybridrec.ops.room import at_stride, mark
from hybridrec.ops.row_cache.runs import told
from hybridrec.ops.row_groups.triton import RowGroups
from hybridrec.types import IdBlock
from hybridrec.types.id_block import NO_ID

if TYPE_CHECKING:
    from hybridrec.embedding.gpu.group import DeviceGroup
    from hybridrec.embedding.gpu.tier_class import Flight

NO_FAULT = 0  # no id outside a table is 0


class Slotted(NamedTuple):
    """The ids of a block with slots for those of tiered and dynamic tables, whose rows are there."""

    values: Tensor
    flights: tuple[Flight, ...] = ()  # which keep the rows of tiered tables on the device
    eras: Mapping[str, int] = {}  # of the slots of dynamic tables, by table


@dataclass(eq=False)
class Looked:
    """A lookup that gradients may come for: its ids, their groups by row, and their gradient once it is there."""

    block: IdBlock
    layout: Layout
    features: tuple[FeatureSpec, ...]
    rows_of: Mapping[str, int]  # by table
    weights: Tensor | None
    bag_of: Tensor
    scales: Tensor | None
    winners: Tensor | None = None  # of max
    groups: RowGroups | None = None
    ready: Any = None  # an event on the stream that grouped
    flat: Tensor | None = None
    sequences: tuple[Tensor | None, ...] = ()
    flights: tuple[Flight, ...] = ()  # which keep the rows of tiered tables on the device
    ids: Tensor | None = None  # where slots of dynamic tables have taken their places
    eras: Mapping[str, int] = field(default_factory=dict)  # of those slots, by table
    kept: Mapping[int, Tensor] = field(default_factory=dict)  # rows for the gradient of weights, by place of feature
    update: Replay | None = None  # where its memory stays, so that its launches can be replayed

    def look_for(self, ids: Tensor) -> None:
        """Others than those that it has looked for."""
        old = self.block.values
        self.block = self.block.map_tensors(lambda part: ids if part is old else part)

    def gradient(self) -> Tensor:
        """All gradients as the layout numbers them: the pooled ones, the sequences, and those of the ids of max."""
        parts = [self.flat, *self.sequences, *([] if self.winners is None else [self._of_max()])]
        assert all(part is not None for part in parts), "grouped lookups have all their gradients"
        if len(parts) == 1:
            return self.flat  # pyright: ignore[reportReturnType]
        pooled = self.flat.as_strided((len(self.flat) * self.layout.stride,), (1,))  # pyright: ignore
        return torch.cat([pooled, *(part.flatten() for part in parts[1:])])  # pyright: ignore

    def _of_max(self) -> Tensor:
        """The gradients of the ids of max, feature after feature."""
        assert self.flat is not None, "pooled features have a gradient"
        assert self.winners is not None, "some feature is pooled by max"
        return occurrence_gradients(self.block.offsets, self.layout, self.flat, self.winners)

    def occurrences(self, table: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows int64 [n] and gradients [n, dim] of the ids of each feature of a table, by plain PyTorch."""
        sequences, of_max = iter(self.sequences), None
        for number, (feature, column) in enumerate(zip(self.features, self.layout.columns, strict=True)):
            line = self.layout.order.index(number)
            dim = self.layout.dims[line]
            if feature.combiner == "none":
                grad = next(sequences)
            else:
                grad = None if self.flat is None else self.flat[:, column : column + dim]
            if feature.table == table and grad is not None:
                if feature.combiner == "max":
                    of_max = self._of_max() if of_max is None else of_max
                    grad = of_max[slice(*self.layout.largest[line])].view(-1, dim)
                yield self._of_feature(feature, line, grad)

    def _of_feature(self, feature: FeatureSpec, line: int, grad: Tensor) -> tuple[Tensor, Tensor]:
        at = self.block.names.index(feature.name)
        start, stop, hot = self.block.starts[at], self.block.starts[at + 1], self.block.hotness[at]
        ids = self.block.values[start:stop]
        known = ((ids >= 0) & (ids < self.rows_of[feature.table])).nonzero()[:, 0]  # others may have no bag
        if feature.combiner in ("none", "max"):
            bags = known // feature.group
        else:
            bags = self.bag_of[start:stop][known].long() if hot is None else known // max(hot, 1)
        share = torch.ones(len(known), device=grad.device)
        if self.scales is not None and feature.combiner in ("mean", "sqrtn"):
            share = self.scales[line, bags]
        if self.weights is not None:
            share = share * self.weights[start:stop][known]
        return ids[known], grad[bags] * share[:, None]


class DeviceLookup:
    """Looks up features of a group's tables: a block to the pooled features, and the sequences.

    Pooled features are side by side, or in the columns that they are given; what is between those is not written, nor
    is `room` behind them.
    """

    def __init__(
        self,
        group: DeviceGroup,
        features: tuple[FeatureSpec, ...],
        remedy: str | None = None,
        columns: Columns | None = None,
        room: int | None = None,
    ) -> None:
        self.group = group
        self.features = features
        self.remedy = remedy or REMEDY
        self.columns, self.room = columns, room
        self.tiers = Tiers(group.tiered, features, group.gate)
        self.padded = any(feature.padding is not None for feature in features)
        self.admission = Admission(group, features)
        self._fixed = FixedSlots()
        self.rows_of = {name: store.reach for name, store in group.stores.items()}
        self.facts: list[TableFacts] = [group.facts(feature.table) for feature in features]
        self._layouts: dict[Any, Layout] = {}
        trained = any(f.table in group.handles for f in features)
        self.anchor = torch.zeros((), device=group.device, requires_grad=trained)
        self.faults = torch.full((len(features),), NO_FAULT, device=group.device)
        cuda = group.device.type == "cuda"
        self._seen = torch.full((len(features),), NO_FAULT, pin_memory=cuda)  # the faults, as they were some time ago
        self._copied: Any = None  # the event after which `_seen` can be read

    def __call__(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        look_up = self._apart if torch.compiler.is_compiling() else self._look_up
        return look_up(block, train)

    @_disable_dynamo  # streams, events and what is kept from one batch to the next are no part of a compiled graph
    def _apart(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        return self._look_up(block, train)

    def _look_up(self, block: IdBlock, train: bool) -> tuple[Tensor, Sequence[Tensor]]:
        self.watch()
        weights = None if block.weights is None else block.weights.contiguous()
        out = _Lookup.apply(self.anchor, weights, block, self, train, torch.is_grad_enabled())
        return out[0] if self.room is None else mark(out[0], out[0].stride(0)), out[1:]

    def fetch(self, block: IdBlock) -> None:
        """Have rows of tiered tables come to the device ahead of the lookup of this block."""
        self.tiers.expect(block)

    def one(
        self, values: Tensor, offsets: Tensor, weights: Tensor | None, hotness: int, batch_size: int, train: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same for the only feature; hotness is -1 where there are offsets."""
        ends = sound(offsets, len(values))[None] if hotness < 0 else offsets.new_empty(0, batch_size + 1)
        hot = (None if hotness < 0 else hotness,)
        names, starts = (self.features[0].name,), (0, len(values))
        return self(IdBlock(names, values, starts, hot, ends, weights, batch_size=batch_size), train)

    def __reduce__(self) -> tuple:
        return DeviceLookup, (self.group, self.features, self.remedy, self.columns, self.room)

    def layout(self, block: IdBlock) -> Layout:
        """How kernels see blocks of this shape."""
        kind = (block.names, block.starts, block.hotness, block.batch_size)
        found = self._layouts.get(kind)
        if found is None:
            if len(self._layouts) >= MOST_LAYOUTS:  # ragged blocks are all different
                self._layouts.clear()
            found = self._layouts[kind] = self._make(block)
        return found

    def _make(self, block: IdBlock) -> Layout:
        at = [block.names.index(feature.name) for feature in self.features]
        shapes = Shapes(
            *(self.features, self.facts, [block.hotness[i] for i in at], [block.hotness[:i].count(None) for i in at]),
            *(block.batch_size, self.group.device, self.group.sizes, self.columns, self.room),
        )
        starts, ends = ([block.starts[i + more] for i in at] for more in (0, 1))
        return shapes.layout(starts, [end - start for start, end in zip(starts, ends, strict=True)])

    def slotted(self, block: IdBlock, train: bool, gradients: bool) -> Slotted:
        """Have rows of tiered and dynamic tables come; within a capture, what each replay finds in their memory."""
        if not (self.tiers or self.admission):
            return Slotted(block.values)
        if capturing(block.values.device):
            return Slotted(self._fixed.read(block, train, gradients, once=train and bool(self.admission)))
        values, flights = self.tiers.slots(block) if self.tiers else (block.values, ())
        if not self.admission:
            return Slotted(values, flights)
        values, eras = self.admission.slots(block, values, train, gradients)
        return Slotted(values, flights, eras)

    def fix(self, block: IdBlock) -> None:
        """Before a capture: lookups of this very block read slots from memory that stays; see `slots`."""
        if (self.tiers or self.admission) and not spread(self.features):
            self._fixed.fix(block)

    def slots(self, fixed: IdBlock, block: IdBlock) -> tuple[Tensor, Slotted] | None:
        """Before a replay: the memory that it reads slots from, and those of a block that belong there."""
        there = self._fixed.of(fixed)
        if there is None or there.asked is None:
            return None
        self.admission.watch()
        return there.slots, self.slotted(block, *there.asked)

    def as_now(self, looked: Looked) -> Looked:
        """A lookup of rows that were kept, and of others as they are now."""
        return with_kept(self.admission.as_now(looked, self.layout(looked.block))) if self.admission else looked

    def watch(self) -> None:
        """Raise if an earlier lookup had ids outside a table, or too many rows; nobody waits for the device to know."""
        self.tiers.watch()
        if capturing(self.faults.device):  # what it finds is told after a replay, by `refuse`
            return None
        self.admission.watch()
        if self.faults.device.type == "cpu":
            return self._refuse(self.faults)
        if self._copied is not None and self._copied.query():
            self._copied = None
            self._refuse(self._seen)
        if self._copied is None:
            self._seen.copy_(self.faults, non_blocking=True)
            self._copied = torch.cuda.current_stream(self.faults.device).record_event()
        return None

    def check(self) -> None:
        """Raise if any lookup had ids outside a table; waits for the current stream."""
        self._copied = None  # what comes now is newer
        self._refuse(self.faults)

    def report(self) -> None:
        """Within a capture, after the lookup: replays bring to the host what `refuse` looks at."""
        self._seen.copy_(self.faults, non_blocking=True)

    def refuse(self) -> None:
        """Raise if a replay that is done had ids outside a table."""
        self._refuse(self._seen)

    def _refuse(self, faults: Tensor) -> None:
        for feature, value in zip(self.features, faults.tolist(), strict=True):
            if value == NO_FAULT:
                continue
            store = self.group.stores[feature.table]
            table = store.table
            if table.out_of_range == "error":
                self.faults.fill_(NO_FAULT)
                row = told(value, len(store), len(store.there)) if feature.table in self.group.tiered else value
                id = store.share.id_of(row)
                raise ValueError(
                    f"id {id} of feature {feature.name!r} is outside table {table.name!r}, 0 … {table.fixed_rows - 1}; "
                    f"an earlier lookup took it for zeros; {remedy_for(id, self.remedy)}"
                )


def sound(offsets: Tensor, ids: int) -> Tensor:
    """Offsets int64 [bags + 1] that kernels may follow: nobody waits for a device to say whether they are right.

    They begin with 0, end with the number of ids, and do not decrease; those that do are cut.

    >>> sound(torch.tensor([0, 3, 2, 9]), 4)
    tensor([0, 3, 3, 4])
    """
    made = offsets.clamp(0, ids).cummax(0).values
    made[:1] = 0
    made[-1:] = ids
    return made


def unpadded(block: IdBlock, features: Sequence[FeatureSpec], slots: Tensor | None = None) -> Tensor:
    """The ids of a block, or their slots, without those of padding, whose rows take no gradient.

    >>> block = IdBlock.from_lists({"item": [7, 0]})
    >>> unpadded(block, [FeatureSpec("item", "item", "none", padding=0)])[0]
    tensor(7)
    """
    values = (block.values if slots is None else slots).clone()
    for feature in features:
        if feature.padding is not None:
            at = block.names.index(feature.name)
            mine = slice(block.starts[at], block.starts[at + 1])
            values[mine].masked_fill_(block.values[mine] == feature.padding, NO_ID)
    return values


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        weights: Tensor | None,
        block: IdBlock,
        lookup: DeviceLookup,
        train: bool,
        record: bool,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # an output without a gradient touches no row
        learned, weighed = (record and part is not None and part.requires_grad for part in (anchor, weights))
        layout, keep = lookup.layout(block), weighed or learned
        slotted, ids = lookup.slotted(block, train, learned), block
        if layout.hashed:
            ids = replace(block, values=hash_outside(block.values, layout))
        if slotted.values is block.values:
            block = ids
        else:
            block = replace(ids, values=hash_outside(slotted.values, layout) if layout.hashed else slotted.values)
        given = block.values, block.offsets, weights, layout
        apart = layout.ragged or layout.divides or weighed or lookup.padded
        ids_there = None if apart else lookup.group.moment()
        flat, sequences, bag_of, scales = pool(*given, lookup.faults, keep)
        winners = largest(*given, flat, lookup.faults, keep)
        if keep:
            if weighed and weights is not None:  # their own step may come before that of the rows
                weights = weights.detach().clone()
                ctx.save_for_backward(flat)
            if lookup.padded:
                block = replace(block, values=unpadded(ids, lookup.features, block.values))
            ctx.looked = Looked(
                *(block, layout, lookup.features, lookup.rows_of, weights, bag_of, scales, winners),
                flights=slotted.flights,
                ids=ids.values if lookup.admission else None,
                eras=slotted.eras,
                kept=lookup.admission.kept(block, slotted.eras) if weighed else {},
            )
            ctx.lookup = lookup
            if train and learned:
                lookup.group.prepare(ctx.looked, ids_there)  # None where it needs what `pool` finds
        del slotted  # where no gradient may come, rows may go
        if not capturing(anchor.device):  # else it is for who replays
            lookup.tiers.go_on()
        return (flat, *sequences)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flat, *sequences = (None if grad is None else grad.contiguous() for grad in (None, *grads[1:]))
        if grads[0] is not None:
            flat = at_stride(grads[0], ctx.looked.layout.stride)
        looked = replace(ctx.looked, flat=flat, sequences=tuple(sequences))  # a second backward brings its own
        of_weights = None
        if ctx.needs_input_grad[1]:
            of_weights = weight_gradient(ctx.lookup.as_now(looked), *ctx.saved_tensors)
        if ctx.needs_input_grad[0] and (of_weights is None or accumulates(ctx.lookup.anchor)):
            if looked.groups is None:  # the lookup was one of eval()
                ctx.lookup.group.prepare(looked)
            ctx.lookup.group.take(looked)
        return (None, of_weights, *[None] * 4)  # nobody asks for the anchor's own, which would be launches of zeros
