from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_update import triton as updating


class Noted:
    """In place of a kernel: the lists of rows and gradients that it was launched for."""

    def __init__(self) -> None:
        self.launches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda grads, listed, *_, **options: self.launches.append((grads, listed))


def test_more_gradients_than_int32_can_number_take_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    count, dim, noted, nothing = 2050, 2**20, Noted(), torch.zeros(0)
    monkeypatch.setattr(updating, "update_single", noted)
    grads = torch.zeros(1, dim).expand(count, dim)  # which takes the memory of one
    updating.update_listed(torch.arange(count), grads, 3, torch.float32, "sgd", *[nothing] * 4, norm=False)
    assert torch.cat([listed[0] for _, listed in noted.launches]).tolist() == list(range(count))
    for part, (rows, tables, begins) in noted.launches:
        assert tables.unique().tolist() == [3]
        assert begins.tolist() == [number * dim for number in range(len(rows))]
        assert len(part) == len(rows)
