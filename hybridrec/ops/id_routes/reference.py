"""Routing in plain PyTorch, one id after the other: what the kernels agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec.embedding.id_hash import hashed_rows
from hybridrec.ops.id_routes.lines import of
from hybridrec.ops.id_routes.triton import Routed, Segments
from hybridrec.types.id_block import NO_ID


def route(values: Tensor, lines: Tensor, room: tuple[int, int, int], of_keys: Segments) -> Routed:
    """The rows and keys of ids, the distinct ones in the order of their keys, and where each id has its own."""
    asked, sent, features = room
    rows, keys = torch.empty(asked + sent, dtype=torch.int64), torch.empty(asked, dtype=torch.int64)
    faults = torch.full((features,), of.NO_FAULT)
    for start, count, to, size, policy, holders, first, feature in lines.tolist():
        for i, id in enumerate(values[start : start + count].tolist()):
            if policy == of.HASH and id != NO_ID and not 0 <= id < size:
                id = int(hashed_rows(torch.tensor([id]), size))
            known = 0 <= id < size
            if policy == of.ERROR and id != NO_ID and not known:
                faults[feature] = min(int(faults[feature]), i)
            rows[to + i] = id // holders if known else NO_ID
            if first != of.NOT_ASKED:
                keys[to + i] = int(of_keys.bases[first + id % holders]) + id // holders if known else -1
    found = sorted(set(keys.tolist()) - {-1})
    place = {key: n for n, key in enumerate(found)}
    ends = torch.tensor([sum(key < border for key in found) for border in of_keys.borders.tolist()])
    starts = ends[of_keys.firsts].tolist()
    classes = of_keys.borders[of_keys.firsts].tolist()
    before = {key: starts[sum(key >= border for border in classes) - 1] for key in found}
    positions = [place[key] - before[key] if key >= 0 else NO_ID for key in keys.tolist()]
    row_of = {key: int(row) for key, row in zip(keys.tolist(), rows[:asked].tolist(), strict=True)}
    distinct = torch.tensor([row_of[key] for key in found], dtype=torch.int64)
    return Routed(rows, torch.tensor(positions, dtype=torch.int64), distinct, ends, faults)
