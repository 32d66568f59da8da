"""The row update on the GPU: gradients summed per row in registers, and the optimizer's formula applied at once.

Rows come as `row_groups` lists them: those with one occurrence, with few, and with many. The last are summed by
chunks, several programs to a row, and updated by a second launch. How many rows there are only the device knows:
programs go round until the list is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridrec.ops.features import TYPES
from hybridrec.ops.philox import triton as philox
from hybridrec.ops.philox.part import ALL, Part
from hybridrec.ops.philox.reference import ROUNDING
from hybridrec.ops.row_groups.triton import RowGroups
from hybridrec.ops.row_update.numbers import RULES, of
from hybridrec.optim.rule import RowStep


class Drawn(NamedTuple):
    """What the rounding of a half table's rows is drawn by.

    `owners` is the address of their numbers, or 0; `ids` that of their ids, where they may have any.
    """

    key: int
    part: Part = ALL
    owners: int = 0
    ids: int | None = None

    @property
    def held(self) -> int:
        if self.part.column % 8:
            return of.ANYWHERE
        return of.OWNED if self.owners else of.WHOLE if self.part == ALL else of.SHARE


class Launch(NamedTuple):
    """How a kernel is launched; found best on an H200 for dimensions 8 to 128."""

    numbers: int  # of float32 rows that a program has in hand
    warps: int
    times: int  # programs, in those of `Sizes`


SINGLE, FEW, CHUNKS, MANY = Launch(1024, 4, 4), Launch(256, 2, 4), Launch(0, 1, 4), Launch(1024, 4, 1)
MOST_NUMBERS = 2**31 - 1  # of the gradients of a launch: places in them are int32


@triton.jit
def _number(numbers, table, which, mask):
    return tl.load(numbers + table * of.NUMBERS + which, mask=mask, other=0.0)[:, None]


@triton.jit
def _at(addresses, table, which, mask, TYPE: tl.constexpr, ALIGN: tl.constexpr):
    address = tl.load(addresses + table * of.ADDRESSES + which, mask=mask, other=0)
    return tl.multiple_of(address.to(tl.pointer_type(TYPE)), 16 if ALIGN > 1 else 1)[:, None]


@triton.jit
def _take(
    g, row, table, mask, columns, addresses, numbers, keys, outcome,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, NORM: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Rows [n] of tables [n] take their summed gradients [n, WIDTH]: by a step, or as they are."""
    if RULE == of.SUM:
        to = _at(addresses, table, of.ROWS, mask, ROW, ALIGN) + row.to(tl.int64)[:, None] * D + columns[None, :]
        tl.store(to, g, mask=mask[:, None] & (columns[None, :] < D))
    else:
        _step(g, row, table, mask, columns, addresses, numbers, keys, outcome, RULE, ROW, D, ALIGN, NORM, HELD)


@triton.jit
def _step(
    g, row, table, mask, columns, addresses, numbers, keys, outcome,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, NORM: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """One step of rows [n] of tables [n] with their summed gradients [n, WIDTH]; see README.md for the order."""
    inside = mask[:, None] & (columns[None, :] < D)
    g = tl.where(inside, g * _number(numbers, table, of.SCALE, mask), 0.0)
    finite = tl.min(tl.where(g - g == 0, 1, 0), 1) == 1
    bad = mask & (finite == 0)
    tl.atomic_add(outcome + 1 + table, tl.where(bad, 1.0, 0.0), mask=bad, sem="relaxed")
    mask = mask & (bad == 0)
    inside = inside & mask[:, None]
    if NORM:
        tl.atomic_add(outcome, tl.sum(tl.where(inside, g * g, 0.0)), sem="relaxed")
    else:
        _apply(g, row, table, mask, inside, columns, addresses, numbers, keys, RULE, ROW, D, ALIGN, HELD)


@triton.jit
def _apply(
    g, row, table, mask, inside, columns, addresses, numbers, keys,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """The formula, on gradients that are scaled and finite."""
    norm, clip = tl.sqrt(tl.sum(g * g, 1))[:, None], _number(numbers, table, of.CLIP, mask)
    g = tl.where(norm > clip, g * (clip / norm), g)
    place = row.to(tl.int64)[:, None] * D + columns[None, :]
    w_at = _at(addresses, table, of.ROWS, mask, ROW, ALIGN) + place
    w = tl.load(w_at, mask=inside, other=0.0).to(tl.float32)
    g += _number(numbers, table, of.DECAY, mask) * w
    lr, eps = _number(numbers, table, of.LR, mask), _number(numbers, table, of.EPS, mask)
    if RULE == of.SGD:
        w -= lr * g
    elif RULE == of.ROWWISE_ADAGRAD:
        s_at = _at(addresses, table, of.FIRST, mask, tl.float32, 1) + row.to(tl.int64)[:, None]
        s = tl.load(s_at, mask=mask[:, None], other=0.0) + (tl.sum(tl.where(inside, g * g, 0.0), 1) / D)[:, None]
        tl.store(s_at, s, mask=mask[:, None])
        w -= lr * g / (tl.sqrt(s) + eps)
    else:
        first_at = _at(addresses, table, of.FIRST, mask, tl.float32, ALIGN) + place
        first = tl.load(first_at, mask=inside, other=0.0)
        if RULE == of.ADAGRAD:
            first += g * g
            w -= lr * g / (tl.sqrt(first) + eps)
        elif (RULE == of.MOMENTUM) | (RULE == of.NESTEROV):
            rate = _number(numbers, table, of.MOMENTUM_RATE, mask)
            first = rate * first + g
            w -= lr * (g + rate * first) if RULE == of.NESTEROV else lr * first
        else:
            second_at = _at(addresses, table, of.SECOND, mask, tl.float32, ALIGN) + place
            second = tl.load(second_at, mask=inside, other=0.0)
            if RULE == of.ADAM:
                first += (g - first) * (1 - _number(numbers, table, of.BETA1, mask))
                second += (g * g - second) * (1 - _number(numbers, table, of.BETA2, mask))
                w -= lr * first / (tl.sqrt(second) + eps)
            else:  # FTRL: first is z, second n
                l1, root = _number(numbers, table, of.L1, mask), tl.sqrt(second + g * g)
                first += g - (root - tl.sqrt(second)) / lr * w
                second += g * g
                shrunk = first - tl.minimum(tl.maximum(first, -l1), l1)
                divisor = (_number(numbers, table, of.BETA, mask) + root) / lr + _number(numbers, table, of.L2, mask)
                w = -shrunk / tl.maximum(divisor, 1.1754944e-38)  # a smaller constant would be float64
            tl.store(second_at, second, mask=inside)
        tl.store(first_at, first, mask=inside)
    bound = _number(numbers, table, of.BOUND, mask)
    w = tl.where(w > bound, bound, tl.where(w < -bound, -bound, w))  # NaN stays NaN
    if ROW == tl.float32:
        tl.store(w_at, w, mask=inside)
    else:
        tl.store(w_at, _rounded(w, row, table, mask, keys, ROW, HELD), mask=inside)


@triton.jit
def _rounded(w, row, table, mask, keys, ROW: tl.constexpr, HELD: tl.constexpr):
    """The rows [n, WIDTH] in their half type, by draws that go by the ids and columns of whole tables."""
    line = keys + table * of.KEYS
    key, purpose = tl.load(line + of.KEY, mask=mask, other=0), tl.load(line + of.PURPOSE, mask=mask, other=0)
    id, column = row, table * 0
    if HELD % of.LISTED != of.WHOLE:
        if HELD % of.LISTED >= of.OWNED:
            owners = tl.load(line + of.OWNERS, mask=mask, other=0)
            owned = mask & (owners != 0)
            number = tl.load(owners.to(tl.pointer_type(tl.int32)) + row, mask=owned, other=0)
            row = tl.where(owned, number, row)
        stride = tl.load(line + of.STRIDE, mask=mask, other=0)
        id = tl.load(line + of.FIRST_ID, mask=mask, other=0) + row.to(tl.int64) * stride
        column = tl.load(line + of.COLUMN, mask=mask, other=0)
    if HELD >= of.LISTED:
        ids = tl.load(line + of.IDS, mask=mask, other=0)
        listed = mask & (ids != 0)
        mine = tl.load(ids.to(tl.pointer_type(tl.int64)) + row, mask=listed, other=0)
        id = tl.where(listed, mine, id.to(tl.int64))
    return philox.round_stochastic(w, key, id, purpose, column, ROW, HELD % of.LISTED == of.ANYWHERE)


@triton.jit
def _gradients(grad, at, share, mask, columns, D: tl.constexpr, ALIGN: tl.constexpr, SHARES: tl.constexpr):
    """Gradients [n, WIDTH] that begin at numbers [n] of `grad`, times their shares."""
    begin = tl.multiple_of(at.to(tl.int64), ALIGN)
    g = tl.load(grad + begin[:, None] + columns[None, :], mask=mask[:, None] & (columns[None, :] < D), other=0.0)
    return g * share[:, None] if SHARES else g


@triton.jit
def update_single(
    grad, single, single_share, counter, begin, n, addresses, numbers, keys, outcome,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ALIGN: tl.constexpr,
    SHARES: tl.constexpr, NORM: tl.constexpr, HELD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows with one occurrence."""
    total = tl.load(counter)
    columns = tl.arange(0, WIDTH)
    for block in range(tl.program_id(0), tl.cdiv(total, N), tl.num_programs(0)):
        i = block * N + tl.arange(0, N)
        mask = i < total
        row = tl.load(single + begin + i, mask=mask, other=0)
        table = tl.load(single + n + begin + i, mask=mask, other=0)
        at = tl.load(single + 2 * n + begin + i, mask=mask, other=0)
        share = tl.load(single_share + begin + i, mask=mask, other=0.0) if SHARES else tl.zeros([N], tl.float32)
        g = _gradients(grad, at, share, mask, columns, D, ALIGN, SHARES)
        _take(g, row, table, mask, columns, addresses, numbers, keys, outcome, RULE, ROW, D, ALIGN, NORM, HELD)


@triton.jit
def update_few(
    grad, few, grouped, grouped_share, counter, begin, n, addresses, numbers, keys, outcome,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ALIGN: tl.constexpr,
    SHARES: tl.constexpr, NORM: tl.constexpr, HELD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows with a few occurrences."""
    total = tl.load(counter)
    columns = tl.arange(0, WIDTH)
    for block in range(tl.program_id(0), tl.cdiv(total, N), tl.num_programs(0)):
        i = block * N + tl.arange(0, N)
        mask = i < total
        row = tl.load(few + begin + i, mask=mask, other=0)
        table = tl.load(few + n + begin + i, mask=mask, other=0)
        place = tl.load(few + 2 * n + begin + i, mask=mask, other=0)
        times = tl.load(few + 3 * n + begin + i, mask=mask, other=0)
        g = tl.zeros([N, WIDTH], tl.float32)
        for j in range(0, tl.max(times)):
            there = times > j
            at = tl.load(grouped + place + j, mask=there, other=0)
            share = tl.load(grouped_share + place + j, mask=there, other=0.0) if SHARES else tl.zeros([N], tl.float32)
            g += _gradients(grad, at, share, there, columns, D, ALIGN, SHARES)
        _take(g, row, table, mask, columns, addresses, numbers, keys, outcome, RULE, ROW, D, ALIGN, NORM, HELD)


@triton.jit
def sum_chunks(
    grad, many, crowd, crowd_share, partial, counter, begin, chunks,
    D: tl.constexpr, WIDTH: tl.constexpr, ALIGN: tl.constexpr, SHARES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Occurrences of rows with many, a chunk at a time, added to the sum that stands at the row's first chunk."""
    total = tl.load(counter)
    columns = tl.arange(0, WIDTH)
    i = tl.arange(0, CHUNK)
    for number in range(tl.program_id(0), total, tl.num_programs(0)):
        chunk = begin + number
        owner = tl.load(many + 3 * chunks + chunk)
        there = i < tl.load(many + 2 * chunks + owner) - (chunk - owner) * CHUNK
        at = tl.load(crowd + chunk * CHUNK + i, mask=there, other=0)
        share = (
            tl.load(crowd_share + chunk * CHUNK + i, mask=there, other=0.0) if SHARES else tl.zeros([CHUNK], tl.float32)
        )
        g = tl.sum(_gradients(grad, at, share, there, columns, D, ALIGN, SHARES), 0)
        tl.atomic_add(partial + (owner - begin).to(tl.int64) * D + columns, g, mask=columns < D, sem="relaxed")


@triton.jit
def update_many(
    many, partial, counter, begin, chunks, addresses, numbers, keys, outcome,
    RULE: tl.constexpr, ROW: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ALIGN: tl.constexpr,
    NORM: tl.constexpr, HELD: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rows with many occurrences, by the sums of their chunks, which are zeros again afterwards."""
    total = tl.load(counter)
    columns = tl.arange(0, WIDTH)
    for block in range(tl.program_id(0), tl.cdiv(total, N), tl.num_programs(0)):
        chunk = begin + block * N + tl.arange(0, N)
        mask = chunk < begin + total
        mask = mask & (tl.load(many + 3 * chunks + chunk, mask=mask, other=-1) == chunk)
        row = tl.load(many + chunk, mask=mask, other=0)
        table = tl.load(many + chunks + chunk, mask=mask, other=0)
        inside = mask[:, None] & (columns[None, :] < D)
        sums = partial + (chunk - begin).to(tl.int64)[:, None] * D + columns[None, :]
        g = tl.load(sums, mask=inside, other=0.0)
        tl.debug_barrier()  # no thread may load again what another has cleared
        tl.store(sums, tl.zeros([N, WIDTH], tl.float32), mask=inside)
        _take(g, row, table, mask, columns, addresses, numbers, keys, outcome, RULE, ROW, D, ALIGN, NORM, HELD)


def update_groups(
    groups: RowGroups,
    grad: Tensor,
    partial: Tensor,
    number: int,
    rule: str,
    addresses: Tensor,
    numbers: Tensor,
    keys: Tensor,
    outcome: Tensor,
    norm: bool,
    held: int = 0,
) -> None:
    """The rows of one class of a layout take their step, or only add to the norm of their gradients.

    `partial` is for the sums of chunks, as `layout.sums(number)` numbers of float32 or more: zeros, and so again
    afterwards, so that classes and steps may share it. `held` is by `holding`.
    """
    each, n, m = groups.layout.classes[number], groups.layout.most, groups.layout.chunks
    programs, chunk = groups.layout.sizes.programs, groups.layout.sizes.chunk
    counter = groups.counters[number]
    common = {"D": each.dim, "WIDTH": each.width, "ALIGN": each.align}
    stepping = {**common, "RULE": RULES[rule], "ROW": TYPES[each.dtype], "NORM": norm, "HELD": held}
    shares = {"SHARES": groups.single_share is not None}
    to = addresses, numbers, keys, outcome
    rows = lambda numbers: max(1, numbers // each.width)  # noqa: E731
    update_single[(programs * SINGLE.times,)](
        *(grad, groups.single, groups.single_share, counter, each.begin, n, *to),
        **stepping, **shares, N=rows(SINGLE.numbers), num_warps=SINGLE.warps,
    )  # fmt: skip
    update_few[(programs * FEW.times,)](
        *(grad, groups.few, groups.grouped, groups.grouped_share, counter[1:], each.begin, n, *to),
        **stepping, **shares, N=rows(FEW.numbers * 4 // each.dtype.itemsize), num_warps=FEW.warps,
    )  # fmt: skip
    sum_chunks[(programs * CHUNKS.times,)](
        *(grad, groups.many, groups.crowd, groups.crowd_share, partial, counter[2:], each.chunks, m),
        **common, **shares, CHUNK=chunk, num_warps=CHUNKS.warps,
    )  # fmt: skip
    update_many[(programs * MANY.times,)](
        *(groups.many, partial, counter[2:], each.chunks, m, *to),
        **stepping, N=rows(MANY.numbers), num_warps=MANY.warps,
    )  # fmt: skip


def update_listed(
    rows: Tensor,
    grads: Tensor,
    table: int,
    dtype: torch.dtype,
    rule: str,
    addresses: Tensor,
    numbers: Tensor,
    keys: Tensor,
    outcome: Tensor,
    norm: bool,
    held: int = 0,
) -> None:
    """Different rows [U] of one table take a step with their summed gradients float32 [U, dim]."""
    count, dim = grads.shape
    if not count:
        return
    if count > (most := MOST_NUMBERS // dim):
        for part in zip(rows.split(most), grads.split(most), strict=True):
            update_listed(*part, table, dtype, rule, addresses, numbers, keys, outcome, norm, held)
        return
    begins = torch.arange(count, device=grads.device) * dim
    listed = torch.stack([rows, torch.full_like(rows, table), begins]).to(torch.int32)
    width, align = 1 << (dim - 1).bit_length(), 4 if dim % 4 == 0 else 1
    counter = torch.full((1,), count, dtype=torch.int32, device=grads.device)
    each = max(1, 1024 // width)
    update_single[(triton.cdiv(count, each),)](
        *(grads, listed, None, counter, 0, count, addresses, numbers, keys, outcome),
        RULE=RULES[rule], ROW=TYPES[dtype], D=dim, WIDTH=width, ALIGN=align, SHARES=False, NORM=norm, HELD=held,
        N=each,
    )  # fmt: skip


def step_numbers(names: Sequence[str], steps: Mapping[str, RowStep]) -> list[tuple[float, ...]]:
    """The numbers of each table's step; zeros for a table that takes none."""
    none = (0.0,) * of.NUMBERS
    made = {id(step): _numbers(step) for step in {id(step): step for step in steps.values()}.values()}
    return [made[id(steps[name])] if name in steps else none for name in names]


def step_keys(
    keys: Sequence[Drawn | None], names: Sequence[str], steps: Mapping[str, RowStep]
) -> list[tuple[int, ...]]:
    """What the rounding of each table is drawn by, as int64; zeros for a table that takes no step, or has no key."""
    none = (0,) * of.KEYS
    return [
        none if key is None or name not in steps else _keys(key, steps[name].step)
        for key, name in zip(keys, names, strict=True)
    ]


def _keys(drawn: Drawn, step: int) -> tuple[int, ...]:
    return _signed(drawn.key), ROUNDING + step % (2**32 - 2), *drawn.part, drawn.owners, drawn.ids or 0


def holding(drawn: Iterable[Drawn]) -> int:
    """What kernels must reckon with where they round rows of these tables: the more, the more they have to load.

    >>> holding([]), holding([Drawn(7, Part(1, 4)), Drawn(7, Part(column=8))]), holding([Drawn(7), Drawn(7, owners=4)])
    (0, 1, 2)
    >>> holding([Drawn(7), Drawn(7, ids=4)])
    4
    """
    found = list(drawn)
    listed = any(each.ids is not None for each in found)
    return max((each.held for each in found), default=of.WHOLE) + of.LISTED * listed


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >> 63 else bits


def _numbers(s: RowStep) -> tuple[float, ...]:
    return (
        *(s.lr, s.momentum, s.weight_decay, s.eps, s.beta1, s.beta2, s.l1, s.l2, s.beta),
        *(s.weight_bound, s.clip_row_norm, s.grad_scale),
    )
