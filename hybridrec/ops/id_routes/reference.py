"""Routing in plain PyTorch, one id after the other: what the kernels agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridrec import _native
from hybridrec.embedding.id_hash import hashed_rows, remainder
from hybridrec.ops.id_routes.lines import of
from hybridrec.ops.id_routes.triton import Routed, Segments
from hybridrec.types.id_block import NO_ID


def route(
    values: Tensor, lines: Tensor, room: tuple[int, int, int], of_keys: Segments, numbers: Tensor | None = None
) -> Routed:
    """The rows and keys of ids, the distinct ones in the order of their keys, and where each id has its own."""
    asked, sent, features = room
    rows, keys = torch.empty(asked + sent, dtype=torch.int64), torch.empty(asked, dtype=torch.int64)
    faults = torch.full((features,), of.NO_FAULT)
    for start, count, to, size, policy, holders, first, feature, begin in lines.tolist():
        for i, id in enumerate(values[start : start + count].tolist()):
            if policy == of.HASH and id != NO_ID and not 0 <= id < size:
                id = int(hashed_rows(torch.tensor([id]), size))
            known = 0 <= id < size if policy != of.ANY else id != NO_ID
            if policy == of.ERROR and id != NO_ID and not known:
                faults[feature] = min(int(faults[feature]), i)
            row, holder, number = id // holders, id % holders, id // holders
            if policy == of.ANY:
                row, holder, number = id, _holder(id, holders), to + i
                if begin != of.EVERY and first != of.NOT_ASKED:
                    assert numbers is not None, "ids of tables that take any have numbers"
                    number = int(numbers[begin + i])
            rows[to + i] = row if known else NO_ID
            if first != of.NOT_ASKED:
                keys[to + i] = int(of_keys.bases[first + holder]) + number if known else -1
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


def _holder(id: int, holders: int) -> int:
    ids, bits = torch.tensor([id]), torch.empty(1, dtype=torch.int64)
    _native.hash_int64(ids.data_ptr(), 1, bits.data_ptr(), of.SEED)
    return int(remainder(bits, holders))
