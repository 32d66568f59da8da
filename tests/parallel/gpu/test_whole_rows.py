"""A row in two pieces, seen whole by both, takes the step that it takes in one piece."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch

from hybridrec.ops.row_update.reference import update_rows
from hybridrec.optim.rule import Kind, RowRule, RowStep, StateColumn
from hybridrec.parallel.gpu.whole_rows import measured, one_by_one, seen_whole

STATES: dict[Kind, tuple[StateColumn, ...]] = {
    "sgd": (),
    "adagrad": (StateColumn("sum"),),
    "rowwise_adagrad": (StateColumn("sum", per_row=True),),
}


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize(
    "more", [{}, {"clip_row_norm": 0.5}, {"clip_row_norm": 0.5, "weight_decay": 0.3, "grad_scale": 0.25}], ids=str
)
def test_two_pieces_move_as_the_whole_does(kind: Kind, more: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, grads = (torch.randn(6, 5, generator=draw) for _ in range(2))
    grads[1, 4], grads[2] = inf, 0.0
    step = RowStep(rule=RowRule(kind, STATES[kind]), lr=0.1, step=1, eps=1e-3, **more)
    state = [torch.rand(6, generator=draw) if kind == "rowwise_adagrad" else torch.rand(6, 5, generator=draw)]
    wanted, moved = update_rows(step, rows, state[: len(STATES[kind])], grads)
    parts = [slice(0, 2), slice(2, 5)]
    sums = torch.stack([measured(step, grads[:, part], rows[:, part]) for part in parts]).sum(0)
    for part in parts:
        of_rows = state[0] if kind == "rowwise_adagrad" else None
        given, new = seen_whole(step, sums, grads[:, part], rows[:, part], of_rows, 5)
        if new is not None:
            torch.testing.assert_close(new, moved[0])
        left = state[0][:, part] if kind == "adagrad" else None
        found, _ = update_rows(one_by_one(step), rows[:, part], [] if left is None else [left], given)
        torch.testing.assert_close(found, wanted[:, part])
