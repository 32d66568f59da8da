"""The index in memory of a device beside a dict, and what its buckets must look like after each change."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.hash_index import reference, triton
from hybridrec.ops.hash_index.lines import of
from hybridrec.ops.hash_index.spans import Spans, of_counts
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, IN_ORDER, needs_gpu, scaled

pytestmark = needs_gpu

LEAST, MOST = -(2**63), 2**63 - 1
EXTREMES = [0, 1, -1, 2**31, 2**32, -(2**32), MOST, LEAST, NO_ID + 1]
IDS = st.integers(LEAST, MOST).filter(lambda id: id != NO_ID)
SLOTS = st.integers(0, 2**31 - 1)


class Both:
    """Indexes on the device and as dicts, with one table per element of `buckets`; 0 has no index."""

    def __init__(self, *buckets: int) -> None:
        self.indexes = [triton.empty(count, DEVICE) if count else None for count in buckets]
        self.dicts: list[dict[int, int] | None] = [{} if count else None for count in buckets]
        self.lines = triton.lines_of(self.indexes, DEVICE)
        self.lacking = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def insert(self, ids: list[int], slots: list[int], spans: Spans | None = None) -> None:
        self._change("insert", ids, slots, spans)

    def erase(self, ids: list[int], slots: list[int], spans: Spans | None = None) -> None:
        self._change("erase", ids, slots, spans)

    def _change(self, name: str, ids: list[int], slots: list[int], spans: Spans | None) -> None:
        spans = spans or one(len(ids))
        more = (self.lacking,) if name == "insert" else ()
        getattr(triton, name)(there(ids), there(slots), spans, self.lines, *more)
        getattr(reference, name)(torch.tensor(ids), torch.tensor(slots), spans, self.dicts)
        self.check()

    def check(self) -> None:
        for index, known in zip(self.indexes, self.dicts, strict=True):
            if index is not None:
                assert reference.entries(index) == known

    def find(self, ids: list[int], spans: Spans | None = None) -> list[int]:
        spans = spans or one(len(ids))
        found = triton.find(there(ids), spans, self.lines).cpu()
        assert torch.equal(found, reference.find(there(ids).cpu(), spans, self.dicts))
        return found.tolist()


def there(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


def one(count: int) -> Spans:
    return of_counts([count], [0], DEVICE, ids=64)


def of_home(bucket: int, buckets: int, count: int, start: int = 0) -> list[int]:
    """Ids whose search begins in this bucket."""
    found = []
    while len(found) < count:
        found += [start] if reference.home_of(start, buckets) == bucket else []
        start += 1
    return found


def test_ids_of_all_sizes_are_found_and_others_are_not() -> None:
    both = Both(3)
    both.insert(EXTREMES, list(range(len(EXTREMES))))
    assert both.find([*EXTREMES, 7, NO_ID, 0]) == [*range(len(EXTREMES)), NO_ID, NO_ID, 0]


def test_an_empty_index_has_no_ids_and_no_ids_have_no_slots() -> None:
    both = Both(2)
    assert both.find([0, 5, LEAST]) == [NO_ID] * 3
    both.insert([], [])
    assert both.find([]) == []


def test_an_id_that_comes_often_is_found_each_time() -> None:
    both = Both(2)
    both.insert([9, 8], [3, 4])
    assert both.find([9] * 100 + [7] * 3) == [3] * 100 + [NO_ID] * 3


def test_a_negative_slot_says_that_an_id_stays_out_or_in() -> None:
    both = Both(2)
    both.insert([1, 2, 3], [5, -1, NO_ID])
    assert both.dicts == [{1: 5}]
    both.erase([1], [-1])
    assert both.find([1, 2, 3]) == [5, NO_ID, NO_ID]


@pytest.mark.parametrize("last", [0, 2])  # the last bucket is followed by the first
def test_ids_go_to_the_next_bucket_where_theirs_is_full(last: int) -> None:
    both, ids = Both(3), of_home(last, 3, 25)
    both.insert(ids[:23], list(range(23)))
    words = both.indexes[0]
    assert words is not None
    assert words[:, of.PASSED].tolist() == [{last: 13, (last + 1) % 3: 3}.get(b, 0) for b in range(3)]
    assert both.find(ids) == [*range(23), NO_ID, NO_ID]


def test_an_entry_that_is_erased_leaves_nothing_behind() -> None:
    both, ids = Both(3), of_home(1, 3, 23)
    both.insert(ids, list(range(23)))
    both.erase(ids[::2], list(range(0, 23, 2)))
    assert both.find(ids) == [NO_ID if n % 2 == 0 else n for n in range(23)]
    both.insert(ids[::2], list(range(100, 112)))
    both.erase(ids, [100 + n // 2 if n % 2 == 0 else n for n in range(23)])
    index = both.indexes[0]
    assert index is not None
    assert not index[:, of.TAKEN :].any()


def test_an_id_of_another_slot_is_not_erased() -> None:
    both = Both(1)
    both.insert([4], [1])
    both.erase([4, 5], [2, 1])
    assert both.find([4]) == [1]


def test_the_search_for_an_id_ends_where_every_bucket_was_full_once() -> None:
    both, first, second = Both(2), of_home(0, 2, 12), of_home(1, 2, 12)
    index, known = both.indexes[0], both.dicts[0]
    assert index is not None
    assert known is not None
    both.insert([*first[:11], *second[:9]], list(range(20)))
    gone = index.view(torch.int64)[0, :5].tolist()
    both.erase(gone, [known[id] for id in gone])
    both.insert(second[9:11], [29, 30])
    assert bool((index[:, of.PASSED] > 0).all())
    assert both.find([first[11], second[11]]) == [NO_ID, NO_ID]


@pytest.mark.skipif(IN_ORDER, reason="set HYBRIDREC_INTERLEAVED: programs do not meet else")
def test_entries_that_crowd_into_few_buckets_are_there_whichever_program_comes_first() -> None:
    both, ids = Both(4), [*of_home(3, 4, 18), *of_home(0, 4, 18)]
    every, some = of_counts([36], [0], DEVICE, ids=4), of_counts([18], [0], DEVICE, ids=4)
    both.insert(ids, list(range(36)), every)
    for step in range(3):
        gone = list(range(step % 2, 36, 2))
        both.erase([ids[slot] for slot in gone], gone, some)
        assert both.find(ids, every).count(NO_ID) == 18
        both.insert([ids[slot] for slot in gone], gone, some)


def test_a_full_index_takes_all_that_fit_and_counts_the_others() -> None:
    both, ids = Both(2), there(list(range(1, 31)))
    triton.insert(ids, ids, one(30), both.lines, both.lacking)
    index = both.indexes[0]
    assert index is not None
    held = {int(id): int(slot) for id, slot in zip(*_held(index), strict=True)}
    assert len(held) == 20
    assert all(id == slot for id, slot in held.items())
    assert int(both.lacking) == 10
    assert sorted(held) == [slot for slot in triton.find(ids, one(30), both.lines).tolist() if slot >= 0]


@pytest.mark.parametrize("buckets", [1, 4, 5, 9])
def test_an_id_without_room_goes_past_each_bucket_once(buckets: int) -> None:
    both, ids = Both(buckets), list(range(buckets * of.ENTRIES))
    both.insert(ids, ids)
    (index,) = both.indexes
    assert index is not None
    before = index.clone()
    triton.insert(there([-7]), there([3]), one(1), both.lines, both.lacking)
    before[:, of.PASSED] += 1
    assert torch.equal(index, before)
    assert int(both.lacking) == 1


def _held(index: Tensor) -> tuple[Tensor, Tensor]:
    slots = index[:, of.SLOTS : of.TAKEN]
    return index.view(torch.int64)[:, : of.ENTRIES][slots >= 0], slots[slots >= 0]


def test_each_span_has_its_own_table_and_one_without_an_index_has_slots_for_ids() -> None:
    both = Both(2, 0, 8)
    spans = of_counts([70, 0, 3, 90], [2, 2, 1, 0], DEVICE, ids=32)
    ids = [*range(70), 7, NO_ID, -1, *range(-20, 70)]
    both.insert(ids, [*range(70), 1, 2, 3, *range(200, 215), *[-1] * 75], of_counts([70, 3, 90], [2, 1, 0], DEVICE, 32))
    found = both.find(ids, spans)
    assert found[:70] == list(range(70))
    assert found[70:73] == [7, NO_ID, -1]
    assert found[73:] == [*range(200, 215), *[NO_ID] * 75]


@pytest.mark.parametrize("load", [0.75, 0.95, 1.0])
def test_an_index_holds_what_it_was_made_for(load: float) -> None:
    rows = scaled(400, 2_000_000)
    torch.manual_seed(0)
    ids = torch.randint(LEAST, MOST, (rows,), device=DEVICE).unique()
    slots, spans = torch.randperm(len(ids), device=DEVICE), of_counts([len(ids)], [0], DEVICE)
    index, lacking = triton.empty(triton.buckets_for(len(ids), load), DEVICE), torch.zeros(1, dtype=torch.int32)
    lines, lacking = triton.lines_of([index], DEVICE), lacking.to(DEVICE)
    triton.insert(ids, slots, spans, lines, lacking)
    assert int(lacking) == 0
    assert torch.equal(triton.find(ids, spans, lines), slots)
    assert bool((triton.find(ids ^ 1 << 40, spans, lines) >= 0).sum() == torch.isin(ids ^ 1 << 40, ids).sum())


@pytest.mark.parametrize("buckets", [7, 40, 500])  # one that is too small, a tight and a wide one
def test_all_entries_move_to_an_index_of_another_size(buckets: int) -> None:
    both, ids = Both(30), list(range(-150, 150))
    both.insert(ids, [id + 150 for id in ids])
    both.erase(ids[::3], [id + 150 for id in ids[::3]])
    index, known = both.indexes[0], both.dicts[0]
    assert index is not None
    assert known is not None
    into, lacking = triton.empty(buckets, DEVICE), torch.zeros(1, dtype=torch.int32, device=DEVICE)
    triton.rehash(index, into, lacking)
    assert int(lacking) == max(0, 200 - 10 * buckets)
    if not int(lacking):
        assert reference.entries(into) == known


def test_ids_are_found_and_erased_wherever_they_are_while_entries_move() -> None:
    both, ids = Both(40), list(range(-150, 150))
    both.insert(ids, [id + 150 for id in ids])
    index, known = both.indexes[0], both.dicts[0]
    assert index is not None
    assert known is not None
    into, first = triton.empty(60, DEVICE), 0
    both.lines = triton.lines_of([into], DEVICE, [index])
    for last in (0, 1, 17, 39, 40):  # buckets
        triton.rehash(index, into, both.lacking, first, last)
        moved, left = reference.entries(into), reference.entries(index)
        assert {**left, **moved} == known
        assert all(moved[id] == left[id] for id in moved.keys() & left.keys())
        gone, first = sorted(known)[last::7], last
        triton.erase(there(gone), there([known[id] for id in gone]), one(len(gone)), both.lines)
        reference.erase(torch.tensor(gone), torch.tensor([known[id] for id in gone]), one(len(gone)), both.dicts)
        new = [1000 + last * 10 + number for number in range(5)]
        triton.insert(there(new), there(new), one(5), both.lines, both.lacking)
        reference.insert(torch.tensor(new), torch.tensor(new), one(5), both.dicts)
        both.find([*ids, *new, NO_ID])
        assert not set(new) & set(reference.entries(index))
    assert reference.entries(into) == known
    assert int(both.lacking) == 0


@settings(max_examples=scaled(15, 200))
@given(st.data())
def test_an_index_is_a_dict_whatever_comes_and_goes(data: st.DataObject) -> None:
    buckets = data.draw(st.integers(1, 4))
    both = Both(buckets)
    known = both.dicts[0]
    assert known is not None
    pool = data.draw(
        st.lists(st.integers(LEAST, MOST).filter(lambda id: id != NO_ID), min_size=1, max_size=30, unique=True)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        new = [id for id in data.draw(st.lists(st.sampled_from(pool), unique=True)) if id not in known]
        new = new[: buckets * of.ENTRIES - len(known)]
        both.insert(
            new, data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(new), max_size=len(new), unique=True))
        )
        gone = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
        both.erase(gone, [known[id] for id in gone])
        both.find(pool)
    assert int(both.lacking) == 0
