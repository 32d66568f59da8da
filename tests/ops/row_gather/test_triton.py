"""Rows of many tables, copied one after the other by one launch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_gather.triton import gather, rows_of_program
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dim", "shift"), [(1, 0), (4, 8), (5, 3), (64, 1)])
def test_rows_of_all_tables_are_copied_to_their_places(dim: int, shift: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tables = [torch.randn(rows, dim).to(dtype).to(DEVICE) for rows in (3, 1, 50)]
    ids = [torch.randint(0, len(table), (count,)) for table, count in zip(tables, (40, 0, 33), strict=True)]
    lines, wanted, start, to = [], [], 0, shift
    ids[0][::7] = NO_ID  # of which there is no row
    for table, mine in zip(tables, ids, strict=True):
        lines.append([table.data_ptr(), start, len(mine), to])
        wanted.append(table.cpu()[mine.clamp(min=0)].float() * (mine >= 0)[:, None])
        start, to = start + len(mine), to + len(mine) * dim
    programs = torch.tensor([-(-len(mine) // rows_of_program(dim)) for mine in ids])
    first = torch.nn.functional.pad(programs.cumsum(0), (1, 0))
    out = torch.full((to + 2,), torch.nan, device=DEVICE)
    align = 1 if dim % 4 or shift % 4 else 4
    there = torch.cat(ids).to(DEVICE), torch.tensor(lines).to(DEVICE), first.to(DEVICE)
    gather(*there, int(first[-1]), out, dim, dtype, align)
    found = out.cpu()
    assert torch.equal(found[shift:-2], torch.cat([part.flatten() for part in wanted]))
    assert bool(found[:shift].isnan().all())
    assert bool(found[-2:].isnan().all())
