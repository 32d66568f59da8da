"""Ids of tables that share a cache, as its rows, and slots in their places: as the plain code has them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_cache import reference_ids
from hybridrec.ops.row_cache.runs import AWAY, Run, Runs, told
from hybridrec.ops.row_cache.triton_ids import put_slots, rows_of
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

RUNS = [Run(3, 20, 10, 0), Run(23, 0, 5, 10), Run(30, 9, 5, 10, hashed=True), Run(40, 1, 1, 15)]
STRANGE = [-1, NO_ID, 2**63 - 1, -(2**63), 10, 12, 5, AWAY, AWAY - 12]


def block() -> torch.Tensor:
    """Ids of which some are in no table, and some of no run."""
    torch.manual_seed(0)
    values = torch.randint(0, 16, (44,))
    values[5 : 5 + len(STRANGE)] = torch.tensor(STRANGE)
    values[30 : 30 + len(STRANGE)] = torch.tensor(STRANGE)
    return values


@pytest.mark.parametrize("ids", [4, 64])
def test_rows_are_those_of_the_plain_code(ids: int) -> None:
    values = block()
    found = rows_of(values.to(DEVICE), Runs.make(RUNS, DEVICE, ids))
    expected = reference_ids.rows_of(values, RUNS)
    assert torch.equal(found.cpu(), expected)
    assert {int(row) for row in expected} <= {NO_ID, *range(16)}


@pytest.mark.parametrize("ids", [4, 64])
def test_slots_go_where_ids_were_and_others_stay(ids: int) -> None:
    values, slots = block(), torch.randint(0, 12, (30,))
    found, expected = values.clone().to(DEVICE), values.clone()
    put_slots(values.to(DEVICE), Runs.make(RUNS, DEVICE, ids), slots.to(DEVICE), 12, found)
    reference_ids.put_slots(values, RUNS, slots, 12, expected)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(expected[:3], values[:3])
    assert torch.equal(expected[23:30], values[23:30])


def test_no_id_outside_its_table_reads_as_a_slot_and_each_is_told_as_it_was() -> None:
    values = torch.tensor([9, 10, 11, 12, -4, 2**62])
    out = torch.empty_like(values).to(DEVICE)
    run = Run(0, len(values), 10, 0)
    put_slots(values.to(DEVICE), Runs.make([run], DEVICE, 8), torch.zeros_like(values).to(DEVICE), 12, out)
    assert out.tolist() == [0, AWAY - 10, AWAY - 11, 12, -4, 2**62]
    assert [told(value, run.rows, 12) for value in out.tolist()[1:]] == values.tolist()[1:]


def test_no_runs_need_no_launch() -> None:
    runs = Runs.make([Run(0, 0, 10, 0)], DEVICE, 8)
    assert len(rows_of(torch.tensor([1], device=DEVICE), runs)) == 0
    out = torch.tensor([1], device=DEVICE)
    put_slots(out, runs, out[:0], 5, out)
    assert out.tolist() == [1]
