"""Slots on the device beside the native table of the host: the same rows come and go, and the same is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.embedding import LFU, LRU, TTL, MinCount, Probability
from hybridrec.ops.hash_index import reference
from hybridrec.ops.hash_index.spans import of_counts
from hybridrec.ops.hash_rows import triton_lowest, triton_rows, triton_wanted
from hybridrec.ops.hash_rows.lines import of
from hybridrec.ops.hash_rows.triton_rows import HashRows, Policy, TableSlots
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, INTERPRETED, needs_gpu, scaled
from tests.ops.hash_rows.both import Both, table, there

pytestmark = needs_gpu

LEAST, MOST = -(2**63), 2**63 - 1
EVICTIONS = [LRU(), LFU(), TTL(2), None]
ADMISSIONS = [None, Probability(0.5), MinCount(3)]


@pytest.mark.parametrize("admission", ADMISSIONS, ids=str)
@pytest.mark.parametrize("eviction", EVICTIONS, ids=str)
def test_the_same_rows_come_and_go_as_on_the_host(eviction: object, admission: object) -> None:
    both = Both(table(8, eviction=eviction, admission=admission))
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        ids = torch.randint(0, 16, (12,), generator=generator)
        both.train([[LEAST, MOST, -1][id] if id < 3 else int(id) for id in ids.tolist()])


def test_tables_of_a_batch_do_not_touch_each_other() -> None:
    both = Both(table(6), table(90, "item", eviction=LFU(), admission=MinCount(2)), table(5, "ad", eviction=None))
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        ids = [torch.randint(0, n, (m,), generator=generator).tolist() for n, m in ((9, 5), (100, 130), (9, 4))]
        both.train(*ids)


def test_a_table_that_is_full_makes_room_by_a_64th_and_the_lower_id_goes_first() -> None:
    both = Both(table(128))
    both.train(list(range(0, -128, -1)))
    both.train([5])
    assert sorted(reference.entries(both.rows.tables[0].index)) == [*range(-125, 1), 5]


def test_rows_of_this_step_stay_and_too_many_are_a_fault_that_changes_nothing() -> None:
    both = Both(table(3, eviction=TTL(1)))
    assert both.train([1, 2])
    assert both.train([3], end=False)
    assert both.train([4], end=False)  # 1 goes for it
    assert not both.train([5, 6])
    assert both.train([5, 6])


def test_an_expired_row_stays_expired_where_too_many_are_wanted() -> None:
    both = Both(table(2, eviction=TTL(1)))
    both.train([1, 2])
    both.train([])
    both.train([])
    assert not both.train([1, 7, 8])
    assert both.train([2])
    assert both.rows.find(there([1, 2]), both.spans(([1, 2],)))[0] == NO_ID


def test_where_too_many_are_wanted_nobody_gets_a_slot_and_nothing_is_left_of_the_batch() -> None:
    rows = HashRows.empty([Policy(2, "ttl", lifetime=1)], DEVICE)
    for ids, slots in (([1, 2, 1], [0, 1, 0]), ([1, 7, 8, 1], [NO_ID] * 4), ([2, 1, 2], [1, 0, 1])):
        spans = of_counts([len(ids)], [0], DEVICE, ids=64)
        assert rows.prepare(there(ids), spans).tolist() == slots
        noted = rows._noted
        assert noted is not None
        assert bool((noted.words == of.EMPTY).all())
        for _ in range(3):
            rows.advance()
    assert rows.counters(0)["refused"] == 0


def test_a_full_table_without_eviction_takes_those_who_came_first() -> None:
    both = Both(table(3, eviction=None))
    both.train([9])
    both.train([7, 9, 5, 7, 6, 5])
    assert sorted(reference.entries(both.rows.tables[0].index)) == [5, 7, 9]


def test_features_of_one_table_are_taken_one_after_the_other() -> None:
    rows = HashRows.empty([Policy(4, "none"), Policy(9)], DEVICE)
    values, spans = there([5, 6, 5, 1, 6, 7, 8, 9]), of_counts([3, 1, 4], [0, 1, 0], DEVICE, ids=64)
    slots = rows.prepare(values, spans).tolist()
    assert slots == [0, 1, 0, 0, 1, 2, 3, NO_ID]
    assert rows.find(values, spans).tolist() == slots


def test_reading_changes_nothing_and_an_expired_row_is_missing() -> None:
    both = Both(table(4, eviction=TTL(2)))
    both.train([1])
    both.train([2])
    both.train([3])
    parts = both.rows.standing, both.rows.tables[0].touched, both.rows.tables[0].index
    before = [part.clone() for part in parts]
    found = both.rows.find(there([1, 2, 3, 9, NO_ID]), both.spans(([0] * 5,))).tolist()
    assert [slot >= 0 for slot in found] == [False, True, True, False, False]
    assert all(torch.equal(was, now) for was, now in zip(before, parts, strict=True))


def test_rows_keep_their_slots_when_their_table_grows() -> None:
    rows = HashRows({1: TableSlots(Policy(9, "lfu"), DEVICE, slots=3)}, 2, DEVICE)
    spans = of_counts([3], [1], DEVICE, ids=64)
    assert rows.prepare(there([5, 6, 5]), spans, evict=False).tolist() == [0, 1, 0]
    rows.grow(1, 6)
    assert rows.find(there([5, 6, 9]), spans).tolist() == [0, 1, NO_ID]
    assert rows.prepare(there([7, 5, 8]), spans, evict=False).tolist() == [2, 0, 3]
    grown = rows.tables[1]
    assert reference.entries(grown.index) == {5: 0, 6: 1, 7: 2, 8: 3}
    assert grown.counts[:4].tolist() == [3, 1, 1, 1]
    assert grown.free[4:].tolist() == [4, 5]
    assert int(rows.lacking) == 0


def held(table: TableSlots) -> dict[int, int]:
    """The slots of all ids, of which some may not have moved to the index of their table."""
    now, before = reference.entries(table.index), {} if table.moving is None else reference.entries(table.moving)
    assert all(now[id] == before[id] for id in now.keys() & before.keys())
    return {**before, **now}


@pytest.mark.parametrize("eviction", ["lfu"] if INTERPRETED else ["lfu", "lru", "ttl"])
def test_rows_come_and_go_as_ever_while_entries_move_to_a_larger_index(
    monkeypatch: pytest.MonkeyPatch, eviction: str
) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 1)
    policies = [Policy(70, eviction), Policy(90, eviction)]
    tables = {
        n: TableSlots(policy, DEVICE, slots) for n, (policy, slots) in enumerate(zip(policies, (50, 30), strict=True))
    }
    grown, whole = HashRows(tables, 2, DEVICE), HashRows.empty(policies, DEVICE)
    spans, seen, generator = of_counts([50, 25], [0, 1], DEVICE, ids=64), set(), torch.Generator().manual_seed(0)
    for turn in range(5):
        for number, more in {1: [(0, 70)], 2: [(1, 60)], 3: [(1, 90)]}.get(turn, ()):  # the last while entries move
            grown.grow(number, more)
        of_both = (turn * 25, 50), (turn * 9, 25)
        ids = torch.cat([torch.randint(first, first + n, (n,), generator=generator) for first, n in of_both]).to(DEVICE)
        before = int(grown.standing[0, of.EVICTED])
        slots = [rows.prepare(ids, spans) for rows in (grown, whole)]
        assert torch.equal(*slots)
        went = int(grown.standing[0, of.EVICTED]) > before
        seen |= {(number, went) for number in range(2) if tables[number].moving is not None}
        for rows in (grown, whole):
            rows.erase(0, ids[:50].unique()[::6])
            rows.advance()
        asked = torch.arange(75, device=DEVICE) * 2
        assert torch.equal(grown.find(asked, spans), whole.find(asked, spans))
        assert [held(tables[number]) for number in range(2)] == [held(whole.tables[number]) for number in range(2)]
    assert (0, True) in seen  # rows went while entries moved
    assert torch.equal(grown.standing, whole.standing)
    for number in range(2):
        grown.finish(number)
        assert tables[number].moving is None
        assert reference.entries(tables[number].index) == held(whole.tables[number])
    assert int(grown.lacking) == 0


def test_a_table_that_is_cleared_while_entries_move_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 1)
    rows = HashRows({0: TableSlots(Policy(60), DEVICE, slots=30)}, 1, DEVICE)
    spans = of_counts([20], [0], DEVICE, ids=64)
    rows.prepare(there(list(range(20))), spans)
    rows.grow(0, 60)
    rows.prepare(there(list(range(20))), spans)
    assert rows.tables[0].moving is not None
    rows.tables[0].clear()
    rows.moved()
    assert rows.find(there(list(range(20))), spans).tolist() == [NO_ID] * 20
    assert rows.prepare(there(list(range(20, 40))), spans).tolist() == list(range(20))


@pytest.mark.parametrize("rows", [10**4, 10**6, 10**8])
@pytest.mark.parametrize("batch", [1000, 10**6])
def test_all_entries_have_moved_before_the_next_index_is_too_small(rows: int, batch: int) -> None:
    lookups = -(-(rows // 2) // batch)
    assert lookups * triton_rows.slice_for(batch) >= triton_rows.hash_index.buckets_for(rows)


def test_a_lookup_moves_no_more_than_a_slice_for_all_tables_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 3)
    tables = {number: TableSlots(Policy(60), DEVICE, slots=30) for number in range(2)}  # four buckets each
    rows, spans = HashRows(tables, 2, DEVICE), of_counts([2], [1], DEVICE, ids=64)
    for number in range(2):
        rows.grow(number, 60)
    found = []
    for _ in range(3):
        rows.prepare(there([1, 2]), spans)
        found.append([None if table.moving is None else table.done for table in tables.values()])
    assert found == [[3, 0], [None, 2], [None, None]]


def test_a_part_of_several_tables_moves_their_entries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "slice_for", lambda _: 3)
    rows = HashRows({1: TableSlots(Policy(60), DEVICE, slots=30)}, 2, DEVICE)
    part, spans = rows.part(1), of_counts([20], [1], DEVICE, ids=64)
    rows.prepare(there(list(range(20))), spans)
    part.grow(0, 60)
    assert rows.find(there([3, 99]), of_counts([2], [1], DEVICE, ids=64)).tolist() == [3, NO_ID]
    part.prepare(there([50]), part.one(0, 1))
    assert rows.tables[1].moving is not None
    rows.prepare(there(list(range(20))), spans)
    assert rows.tables[1].moving is None
    assert part.find(there([50, 7]), part.one(0, 2)).tolist() == [20, 7]
    assert reference.entries(rows.tables[1].index) == {**{id: id for id in range(20)}, 50: 20}


def test_an_index_is_made_for_half_as_many_rows_again_or_on_a_full_card_for_those_that_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = HashRows({0: TableSlots(Policy(10_000), DEVICE, slots=1000)}, 1, DEVICE)
    rows.grow(0, 1100)
    index = rows.tables[0].index
    assert (rows.tables[0].slots, rows.tables[0].room) == (1100, 1500)
    rows.grow(0, 1500)
    assert rows.tables[0].index is index
    empty = triton_rows.hash_index.empty

    def full(buckets: int, device: torch.device) -> Tensor:
        if buckets > 220:
            raise torch.OutOfMemoryError
        return empty(buckets, device)

    monkeypatch.setattr(triton_rows.hash_index, "empty", full)
    rows.grow(0, 1600)
    assert (rows.tables[0].slots, rows.tables[0].room, len(rows.tables[0].index)) == (1600, 1600, 214)


@pytest.mark.parametrize("few", [triton_rows.FEW, 0])
def test_a_new_id_among_many_known_ones_gets_a_row_wherever_it_stands(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_rows, "FEW", few)
    rows, spans = HashRows.empty([Policy(400)], DEVICE), of_counts([300, 30], [0, 0], DEVICE, ids=512)
    slots = rows.prepare(there(list(range(330))), spans, evict=False).tolist()
    assert slots == list(range(330))
    for number, place in enumerate((63, 64, 299, 329)):  # of several programs, the last of them or not
        ids = list(range(330))
        ids[place] = -1 - place
        wanted = [*slots[:place], 330 + number, *slots[place + 1 :]]
        assert rows.prepare(there(ids), spans, evict=False).tolist() == wanted


def test_a_place_that_no_list_reaches_to_wants_no_row() -> None:
    rows = HashRows.empty([Policy(4)], DEVICE)
    assert rows.prepare(there([NO_ID, 3, NO_ID]), of_counts([3], [0], DEVICE, ids=64)).tolist() == [NO_ID, 0, NO_ID]
    assert rows.counters(0) == {"hits": 0, "misses": 1, "inserted": 1, "refused": 0, "evicted": 0, "expired": 0}


def test_ids_of_fixed_tables_are_slots_whatever_they_are() -> None:
    rows = HashRows({1: TableSlots(Policy(9), DEVICE)}, 2, DEVICE)
    ids, spans = [of.EMPTY, NO_ID, of.MISSING, 7, 8, 7], of_counts([3, 3], [0, 1], DEVICE, ids=64)
    assert rows.prepare(there(ids), spans).tolist() == [*ids[:3], 0, 1, 0]


class Broken:
    """A kernel that cannot be launched."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError

        return launch


@pytest.mark.parametrize("where", ["judge", "evict", "bear", "fill_in"])
def test_a_batch_that_is_broken_off_leaves_slots_with_one_id_or_none(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = HashRows.empty([Policy(20)], DEVICE)
    held = rows.tables[0]

    def train(*ids: int) -> list[int]:
        return rows.prepare(there([*ids]), of_counts([len(ids)], [0], DEVICE, ids=64)).tolist()

    train(*range(15))
    rows.advance()
    with monkeypatch.context() as patch:
        patch.setattr(triton_lowest if where == "evict" else triton_wanted, where, Broken())
        with pytest.raises(torch.OutOfMemoryError):
            train(*range(100, 110), *range(8))  # five of the others go
    free = held.free[int(rows.standing[0, of.SIZE]) :].tolist()
    assert not {*free} & {*reference.entries(held.index).values()}
    rows.advance()
    assert len({*train(3, 107, 200)}) == 3
    entries = reference.entries(held.index)
    assert {id: int(held.ids[slot]) for id, slot in entries.items()} == {id: id for id in entries}
    assert int((held.touched != -1).sum()) == len(entries)


def test_what_was_noted_of_a_batch_that_is_broken_off_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = HashRows.empty([Policy(9), Policy(9)], DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(triton_wanted, "judge", Broken())
        with pytest.raises(torch.OutOfMemoryError):
            rows.prepare(there([5, 6, 5, 6]), of_counts([2, 2], [0, 0], DEVICE, ids=64))
    ids, spans = there([9, 6, 6, 5]), of_counts([2, 2], [1, 0], DEVICE, ids=64)  # where it had 6, another table has it
    assert rows.prepare(ids, spans).tolist() == [0, 1, 0, 1]


def test_rows_that_are_put_in_need_no_admission_and_count_as_no_lookup() -> None:
    rows = HashRows.empty([Policy(3, probability=0.0)], DEVICE)
    ids, spans = there([4, -4]), of_counts([2], [0], DEVICE, ids=64)
    assert rows.prepare(ids, spans).tolist() == [NO_ID, NO_ID]
    assert rows.prepare(ids, spans, force=True).tolist() == [0, 1]
    assert rows.counters(0) == {"hits": 0, "misses": 2, "inserted": 2, "refused": 2, "evicted": 0, "expired": 0}


@pytest.mark.parametrize(("eviction", "evict"), [("none", True), ("lru", False)])
def test_a_full_table_that_cannot_evict_takes_in_nobody_and_says_so(eviction: str, evict: bool) -> None:
    rows = HashRows.empty([Policy(2, eviction)], DEVICE)
    rows.prepare(there([1, 2]), of_counts([2], [0], DEVICE, ids=64))
    rows.advance()
    slots = rows.prepare(there([1, 3]), of_counts([2], [0], DEVICE, ids=64), force=True, evict=evict)
    assert slots.tolist() == [0, NO_ID]
    assert rows.standing[0, [of.FAULTS, of.LACKED, of.SPARED, of.SIZE]].tolist() == [1, 1, 0, 2]
    assert reference.entries(rows.tables[0].index) == {1: 0, 2: 1}


def test_batches_of_other_sizes_may_follow_each_other() -> None:
    both = Both(table(200, admission=MinCount(2)))
    for first, last in ((0, 5), (0, 90), (3, 8), (60, 170), (0, 0), (165, 171)):
        both.train(list(range(first, last)))


def test_slots_of_ids_that_are_erased_are_given_again() -> None:
    both = Both(table(3))
    both.train([1, 2, 3])
    both.rows.erase(0, there([2, 99, 1]))
    both.stores[0].erase(torch.tensor([2, 99, 1]))
    both.train([7, 8])
    both.train([3, 7])


def test_counters_of_ids_that_share_them_are_never_too_low() -> None:
    rows = HashRows.empty([Policy(4, min_count=3)], DEVICE)
    sketch = rows.tables[0].sketch.view(4, -1)
    ids = list(range(50))
    for times in (1, 2):
        rows.prepare(there(ids), of_counts([50], [0], DEVICE, ids=64))
        rows.advance()
        assert int(sketch.max()) == times
        assert int((sketch > 0).sum(1).min()) > 40


def test_ids_that_come_many_at_a_time_race_for_nothing() -> None:
    """On a card thousands of programs want the same few ids, claim the same buckets, and evict beside each other."""
    few, many, steps = scaled(30, 50_000), scaled(90, 400_000), scaled(3, 6)
    both = Both(
        table(few), table(few // 3, "item", eviction=LFU(), admission=MinCount(2)), table(few, "ad", eviction=None)
    )
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        draws = torch.rand(3, many, generator=generator).pow(4) * torch.tensor([[few * 0.9], [few * 0.3], [few * 2]])
        both.train(*[(mine.long() * 2**33 - 2**40).tolist() for mine in draws])


def test_the_first_position_of_an_id_counts_whoever_claims_its_place_first() -> None:
    values, spans = there([7, 5, 9, 5]), of_counts([4], [0], DEVICE, ids=64)
    rows, later = torch.full_like(values, of.MISSING), 3
    words = torch.full((256,), of.EMPTY, device=DEVICE)
    words[reference.hash_id(5) % 256] = later  # as if its last occurrence had been quicker
    times, places = torch.zeros(256, dtype=torch.int32, device=DEVICE), torch.zeros(4, dtype=torch.int32, device=DEVICE)
    tables = HashRows.empty([Policy(9, "lfu")], DEVICE)
    read = values, *spans[:2], torch.ones(1, dtype=torch.int32, device=DEVICE), tables.lines, rows
    triton_wanted.want[spans.grid(256)](*read, words, times, places, 256, **spans.kind(256))
    assert words[places.long()].tolist() == [0, 1, 2, 1]
    assert times[places.long()].tolist() == [1, 2, 1, 2]


def test_two_tables_that_see_the_same_ids_give_the_same_slots() -> None:
    few, many, steps = scaled(20, 20_000), scaled(60, 300_000), scaled(3, 6)
    pair = [HashRows.empty([Policy(few, "lfu")], DEVICE) for _ in range(2)]
    generator = torch.Generator().manual_seed(4)
    for turn in range(steps):  # half the capacity at a time, most of them new, so that others go
        ids = ((torch.rand(many, generator=generator).pow(6) + turn) * (few // 2)).long().to(DEVICE)
        spans = of_counts([many], [0], DEVICE, ids=64 if INTERPRETED else 512)
        first, second = (rows.prepare(ids, spans) for rows in pair)
        assert torch.equal(first, second)
        for rows in pair:
            rows.advance()
    assert all(int(rows.standing[0, of.EVICTED]) > 0 for rows in pair)
    assert not any(int(rows.standing[0, of.FAULTS]) for rows in pair)


@settings(max_examples=scaled(8, 200))
@given(st.data())
def test_whatever_comes_the_device_does_what_the_host_does(data: st.DataObject) -> None:
    eviction, admission = data.draw(st.sampled_from(EVICTIONS)), data.draw(st.sampled_from(ADMISSIONS))
    both = Both(table(data.draw(st.integers(1, 6)), eviction=eviction, admission=admission))
    ids = st.one_of(st.integers(-4, 4), st.sampled_from([LEAST, MOST, 2**32, -(2**32)]))
    for _ in range(data.draw(st.integers(1, 5))):
        both.train(data.draw(st.lists(ids, max_size=12)), end=data.draw(st.booleans()))
