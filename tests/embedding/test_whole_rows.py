"""Steps of rows of which a store has some columns: with the sums of all columns they are those of whole rows."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding import Table, Uniform
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.native_store import UNKNOWN, native_step
from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, RowStep, StateColumn

KINDS = {
    "sgd": (),
    "momentum": (StateColumn("momentum_buffer"),),
    "nesterov": (StateColumn("momentum_buffer"),),
    "adagrad": (StateColumn("sum"),),
    "rowwise_adagrad": (StateColumn("sum", per_row=True),),
    "adam": (StateColumn("exp_avg"), StateColumn("exp_avg_sq")),
    "ftrl": (StateColumn("z"), StateColumn("n")),
}
NUMBERS: dict[str, Any] = {"momentum": 0.5, "eps": 0.1, "beta1": 0.9, "beta2": 0.99, "l1": 0.01, "beta": 0.5}
COLUMNS = 1, 16, 6  # of each store


def stores_of(kind: Any, rows: int, dtype: torch.dtype) -> list[DenseStore]:
    """The whole table, and the parts of it."""
    table = Table("t", sum(COLUMNS), rows=rows, init=Uniform(1.0), dtype=dtype)
    starts = [sum(COLUMNS[:place]) for place in range(len(COLUMNS))]
    parts = [Share(column=column, width=width) for column, width in zip(starts, COLUMNS, strict=True)]
    made = [DenseStore(table, 3, share) for share in (Share(), *parts)]
    for store in made:
        store.attach(RowRule(kind, KINDS[kind]))
    return made


class Step:
    """A step of a store with a gradient for each of these ids."""

    def __init__(self, store: DenseStore, ids: Tensor, grads: Tensor, step: RowStep) -> None:
        self.store, self.step = store, [native_step(step)]
        self.slots, self.ids = ids.to(torch.uint32), ids
        self.grads = grads[:, store.share.column : store.share.column + store.dim].contiguous()
        self.update = _native.RowUpdate([store.native])
        self.pending = _native.Pending(
            *(_native.TableSet([store.native], [(0, "none", 1)]), _native.BlockLayout([0], [1], [-1])),
            *(ids.data_ptr(), [0, len(ids)], 0, 0, len(ids), self.slots.data_ptr()),
            *(0, 0, [self.grads.data_ptr()], [], [UNKNOWN]),
        )

    def measured(self) -> Any:
        return self.update.measure([self.pending], self.step, [self.store.table.dim])[0]

    def apply(self, whole: Any = None) -> tuple[int, int]:
        [(updated, not_finite, _)] = self.update.apply([self.pending], self.step, False, [whole])
        return updated, not_finite


def step_all(stores: list[DenseStore], ids: Tensor, grads: Tensor, step: RowStep) -> list[tuple[int, int]]:
    """The same step of the whole table, and of its parts, which tell each other their sums."""
    whole, *parts = [Step(store, ids, grads, step) for store in stores]
    rows = [part.measured() for part in parts]
    total = sum(each.sums().copy() for each in rows)
    for each in rows:
        each.sums()[:] = total
    return [whole.apply(), *(part.apply(each) for part, each in zip(parts, rows, strict=True))]


def assert_alike(stores: list[DenseStore], close: float) -> None:
    whole, *parts = (store.export() for store in stores)
    together = torch.cat([part.rows for part in parts], 1)
    torch.testing.assert_close(together.float(), whole.rows.float(), rtol=close, atol=close)
    for name, values in whole.state.items():
        found = [part.state[name] for part in parts]
        assert values.dim() == 2 or all(torch.equal(each, found[0]) for each in found)
        torch.testing.assert_close(torch.cat(found, 1) if values.dim() == 2 else found[0], values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "beside", [{}, {"weight_decay": 0.3}, {"clip_row_norm": 0.7}, {"weight_decay": 0.3, "clip_row_norm": 0.7}]
)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_rows_take_the_step_of_whole_rows(kind: Any, beside: dict[str, float], dtype: torch.dtype) -> None:
    stores, draw = stores_of(kind, 30, dtype), torch.Generator().manual_seed(0)
    for number in (1, 2, 3):
        ids, grads = torch.randint(30, (50,), generator=draw), torch.randn(50, sum(COLUMNS), generator=draw)
        step = RowStep(rule=RowRule(kind, KINDS[kind]), lr=0.2, step=number, grad_scale=0.5, **NUMBERS, **beside)
        assert step_all(stores, ids, grads, step) == [(len(ids.unique()), 0)] * 4
    assert_alike(stores, 1e-5 if dtype == torch.float32 else 0.02)  # a last digit decides which way a row is rounded


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_in_one_order_however_many_threads_group_them(threads: int) -> None:
    rule = RowRule("rowwise_adagrad", KINDS["rowwise_adagrad"])
    stores, draw = stores_of("rowwise_adagrad", 20_000, torch.float32), torch.Generator().manual_seed(0)
    ids, grads = torch.randint(20_000, (300_000,), generator=draw), torch.randn(300_000, sum(COLUMNS), generator=draw)
    step = RowStep(rule=rule, lr=0.2, step=1, eps=0.1, weight_decay=0.1, clip_row_norm=5.0)
    _native.set_threads(threads)
    try:
        assert step_all(stores, ids, grads, step) == [(20_000, 0)] * 4
    finally:
        _native.set_threads(torch.get_num_threads())
    assert_alike(stores, 1e-4)


def test_a_row_that_is_not_finite_in_one_part_is_left_out_by_all() -> None:
    stores = stores_of("adagrad", 6, torch.float32)
    before = [store.export() for store in stores]
    ids, grads = torch.tensor([1, 4, 4]), torch.ones(3, sum(COLUMNS))
    grads[2, 20] = nan
    step = RowStep(rule=RowRule("adagrad", KINDS["adagrad"]), lr=0.2, step=1, eps=0.1)
    assert step_all(stores, ids, grads, step) == [(1, 1)] * 4
    for store, was in zip(stores, before, strict=True):
        changed = (store.export().rows != was.rows).any(1)
        assert changed.nonzero().flatten().tolist() == [1]


def test_nothing_is_measured_where_no_row_has_gradients() -> None:
    store = stores_of("sgd", 6, torch.float32)[1]
    none = torch.empty(0, dtype=torch.int64)
    step = Step(store, none, torch.empty(0, sum(COLUMNS)), RowStep(rule=RowRule("sgd"), lr=0.1, step=1))
    assert (len(step.measured()), step.measured().sums().shape) == (0, (0, 3))
    assert step.apply(step.measured()) == (0, 0)
