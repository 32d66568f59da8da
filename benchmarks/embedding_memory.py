"""How many bytes does a row of a dynamic table take beside its columns and its optimizer state?

One table is filled to 0.8 of `capacity`, 32,768 new ids at a time; the table counts its own bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from embedding_step import EPS, LR, Task, received, say

import hybridrec as hr

LOAD, CHUNK = 0.8, 32_768


def overhead(emb: Any) -> float:
    """Bytes per row beyond row and state, by the table's own account."""
    return emb["t0"].memory()["overhead_per_row"]


def fill(task: Task) -> dict[str, Any]:
    assert task.capacity is not None
    emb = hr.EmbeddingCollection([hr.Table("t0", dim=task.setting.dim, capacity=task.capacity, features=["f0"])])
    rows = hr.optim.RowWiseAdagrad(emb, lr=LR, eps=EPS)
    mixed = torch.arange(int(LOAD * task.capacity)) * 0x61C8864680B583EB  # odd: distinct ids all over int64
    seen: list[float] = []
    for ids in mixed.split(CHUNK):
        emb(hr.IdBlock.from_ragged({"f0": ids})).flat.sum().backward()
        rows.step()
        seen.append(overhead(emb))
    return {"bytes_per_row": seen[-1], "most_while_filling": max(seen), "rows": len(mixed), "capacity": task.capacity}


if __name__ == "__main__":
    say(fill(received()))
