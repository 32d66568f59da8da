"""Dynamic tables on the device, prepared together, beside those of the host that they must agree with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridrec.data.hashing import xxh64
from hybridrec.embedding import Table
from hybridrec.embedding.hash_store import HashStore, policy_of
from hybridrec.embedding.store import WHOLE
from hybridrec.ops.hash_index import reference
from hybridrec.ops.hash_index.spans import Spans, of_counts
from hybridrec.ops.hash_rows.lines import of
from hybridrec.ops.hash_rows.triton_rows import FOREVER, HashRows, Policy
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE


def policy(table: Table) -> Policy:
    capacity, kind, steps, probability, count = policy_of(table, WHOLE)
    return Policy(capacity, kind, steps or FOREVER, probability, count, xxh64(table.name, 0))


class Both:
    """Dynamic tables on the device, prepared together, and each on the host; programs have so many ids."""

    def __init__(self, *tables: Table, ids: int = 64) -> None:
        self._ids = ids
        self.rows = HashRows.empty([policy(table) for table in tables], DEVICE)
        self.stores = [HashStore(table) for table in tables]

    def train(self, *ids: list[int], end: bool = True) -> bool:
        """A training lookup of the ids of each table; whether there was room in all tables."""
        spans = self.spans(ids)
        slots = self.rows.prepare(there([id for mine in ids for id in mine]), spans)
        faults = self.rows.standing[:, of.FAULTS].tolist()
        self.rows.standing[:, of.FAULTS] = 0
        for number, (store, mine) in enumerate(zip(self.stores, ids, strict=True)):
            if faults[number]:
                needed, unpinned = self.rows.standing[number, [of.LACKED, of.SPARED]].tolist()
                with pytest.raises(ValueError, match=f"{needed} more are needed, but only {unpinned} may"):
                    store.prepare(torch.tensor(mine), train=True)
            else:
                store.prepare(torch.tensor(mine, dtype=torch.int64), train=True)
            if end:
                store.advance()
        if end:
            self.rows.advance()
        self.check(slots.cpu(), ids, faults)
        return not any(faults)

    def spans(self, ids: tuple[list[int], ...]) -> Spans:
        return of_counts([len(mine) for mine in ids], list(range(len(ids))), DEVICE, ids=self._ids)

    def check(self, slots: Tensor, ids: tuple[list[int], ...], faults: list[int]) -> None:
        for number, (store, mine, of_ids) in enumerate(
            zip(self.stores, ids, slots.split([len(mine) for mine in ids]), strict=True)
        ):
            table = self.rows.tables[number]
            with store.capture() as now:
                parts = list(now.chunks())
            known = torch.cat([part.ids for part in parts]).tolist()  # expired ones too
            held, ids_of, touched_of = reference.entries(table.index), table.ids.tolist(), table.touched.tolist()
            assert sorted(held) == sorted(known)
            assert {id: ids_of[slot] for id, slot in held.items()} == {id: id for id in known}
            touched = torch.cat([part.touched for part in parts if part.touched is not None]).tolist()
            assert {id: touched_of[held[id]] for id in known} == dict(zip(known, touched, strict=True))
            if store.counted:
                counts = torch.cat([part.counts for part in parts if part.counts is not None]).tolist()
                counts_of = table.counts.tolist()
                assert {id: counts_of[held[id]] for id in known} == dict(zip(known, counts, strict=True))
            counters = self.rows.counters(number)
            assert counters == {name: store.counters()[name] for name in counters}
            assert int(self.rows.standing[number, of.SIZE]) == len(held)
            free = table.free[len(held) :].tolist()
            assert sorted([*free, *held.values()]) == list(range(table.policy.capacity))
            assert touched_of.count(-1) == len(free)
            if (sketch := store.sketch()) is not None:
                assert torch.equal(table.sketch.cpu(), sketch.view(-1).int())
            if not faults[number]:
                assert all(slot == NO_ID or held[id] == slot for id, slot in zip(mine, of_ids.tolist(), strict=True))
        assert int(self.rows.lacking) == 0


def there(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


def table(capacity: int = 10, name: str = "user", **options: object) -> Table:
    return Table(name, 2, capacity=capacity, **options)  # pyright: ignore[reportArgumentType]
