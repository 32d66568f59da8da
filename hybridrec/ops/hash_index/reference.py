"""An index as a dict, and its memory read in plain PyTorch: what the kernels agree with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hybridrec.ops.features import of as feature
from hybridrec.ops.hash_index.lines import of
from hybridrec.ops.hash_index.spans import Spans
from hybridrec.types.id_block import NO_ID

Tables = Sequence[dict[int, int] | None]  # id to slot; None: ids are slots already


def find(values: Tensor, spans: Spans, tables: Tables) -> Tensor:
    """The slot of every id, NO_ID where there is none."""
    slots = torch.full_like(values, NO_ID)
    for at, id, table in _each(values, spans, tables):
        slots[at] = id if table is None else NO_ID if id == NO_ID else table.get(id, NO_ID)
    return slots


def insert(values: Tensor, slots: Tensor, spans: Spans, tables: Tables) -> None:
    """Give ids that their table does not have, each of them once, these slots; one that is negative says not to."""
    for at, id, table in _each(values, spans, tables):
        if table is not None and slots[at] >= 0:
            assert id not in table, "an id comes once, and is not there yet"
            table[id] = int(slots[at])


def erase(values: Tensor, slots: Tensor, spans: Spans, tables: Tables) -> None:
    """Forget ids, each of them once, that have these slots; others, and negative slots, are passed over."""
    for at, id, table in _each(values, spans, tables):
        if table is not None and slots[at] >= 0 and table.get(id) == int(slots[at]):
            del table[id]


def _each(values: Tensor, spans: Spans, tables: Tables) -> Iterator[tuple[int, int, dict[int, int] | None]]:
    for line in spans.features.tolist():
        start = line[feature.START]
        for at in range(start, start + line[feature.COUNT]):
            yield at, int(values[at]), tables[line[feature.TABLE]]


# -- memory ---------------------------------------------------------------------------------------------------


def hash_id(id: int) -> int:
    """The finalizer of MurmurHash3, as csrc/hash_index.h has it: every bit of the id reaches every bit of the hash.

    >>> hex(hash_id(1))
    '0xb456bcfc34c2cb2c'
    """
    h = id & 2**64 - 1
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & 2**64 - 1
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & 2**64 - 1
    return h ^ h >> 33


def home_of(id: int, buckets: int) -> int:
    """The bucket where the search for an id begins."""
    return (hash_id(id) >> 32) * buckets >> 32


def entries(index: Tensor) -> dict[int, int]:
    """What an index holds, slot by id, and the words beside them are as they must be."""
    words, found = index.cpu(), {}
    keys, slots = words.view(torch.int64)[:, : of.ENTRIES], words[:, of.SLOTS : of.TAKEN]
    bits = 2 ** torch.arange(of.ENTRIES, dtype=torch.int32)
    assert torch.equal(words[:, of.TAKEN], ((slots != of.FREE) * bits).sum(1).int()), "a bit for each entry in use"
    passed = [0] * len(words)
    for bucket, lane in (slots != of.FREE).nonzero().tolist():
        id = int(keys[bucket, lane])
        assert id not in found, "an id has one entry"
        found[id] = int(slots[bucket, lane])
        for step in range((bucket - home_of(id, len(words))) % len(words)):
            passed[(home_of(id, len(words)) + step) % len(words)] += 1
    assert words[:, of.PASSED].tolist() == passed, "a bucket knows how many entries went past it"
    return found
