"""Rows in two tiers on the GPU: as the plain code has them, and to the last bit those of a table that is all hot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="GPU kernels need triton")

from hybridrec.ops.row_cache import reference
from hybridrec.ops.row_cache.cache import Admitted, RowCache, Sizes
from hybridrec.ops.row_cache.triton import admit, land, read, write
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from hybridrec.types.id_block import NO_ID
from tests.gpu import DEVICE, IN_ORDER, INTERPRETED, captures, needs_gpu, scaled
from tests.ops.row_cache.caches import SMALL, contents, made, same_bits, sound

if INTERPRETED:
    from tests.interleaved import interleave

pytestmark = needs_gpu

ROWS, SLOTS = 60, 22
THREE = 34  # slots for three batches of 14 rows that share some
SIZES = [SMALL] if INTERPRETED else [SMALL, Sizes()]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN and huge numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills it so
    yield
    torch.use_deterministic_algorithms(False)


def batch(count: int, rows: int = ROWS) -> Tensor:
    """Row numbers of which low ones are frequent, on the device."""
    return (torch.rand(count) ** 3 * rows).long().to(DEVICE)


def numbers(rows: int = ROWS, *dims: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, *dims).to(dtype)


def rowed(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=DEVICE)


def state_of(cache: RowCache) -> list[list[int]]:
    parts = cache.directory, cache.owner, cache.stamp, cache.passed, cache.lasting
    return [part.tolist() for part in parts]


# -- against the plain code --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("slots", "flights", "count"),
    [(SLOTS, 2, 11), (SLOTS, 1, 34), (41, 3, 14), (1, 1, 1), (ROWS - 1, 2, 40)],
    ids=["two in flight", "some are refused", "three in flight", "one slot", "one cold row"],
)
def test_admissions_agree_with_the_plain_code(slots: int, flights: int, count: int, sizes: Sizes) -> None:
    torch.manual_seed(slots)
    values = [numbers(ROWS, 3), numbers(ROWS)]
    cache, plain = made(ROWS, slots, values, DEVICE, sizes), made(ROWS, slots, values, CPU, sizes)
    for step in range(6):
        rows = torch.randint(0, ROWS, (count,)).to(DEVICE) if step % 2 else batch(count)
        rows[6::7] = torch.tensor([-1, NO_ID, ROWS, 2**62])[step % 4]
        found, expected = admit(cache, rows), reference.admit(plain, rows.cpu())
        assert found.number.tolist() == expected.number.tolist() == [step + 1]
        if IN_ORDER:
            assert torch.equal(found.slots, expected.slots)
            assert state_of(cache) == state_of(plain)
        elif step == 0:  # later, which row got which slot decides who is idle
            assert cache.figures() == plain.figures()
        there = (rows >= 0) & (rows < ROWS)
        assert torch.equal(found.slots[~there], rows[~there])
        known = found.slots[there] != NO_ID
        assert torch.equal(known.cpu(), expected.slots[there.cpu()] != NO_ID)
        assert torch.equal(cache.owner[found.slots[there][known]].long(), rows[there][known])
        land(cache, found.number - flights + 1)
        reference.land(plain, expected.number - flights + 1)
        sound(cache)
        assert all(same_bits(contents(cache, n), column) for n, column in enumerate(values))
    assert cache.figures().moved > 0
    assert (cache.figures().refused > 0) == (count == 34)


def test_numbers_of_rows_may_have_32_bits() -> None:
    cache = made(ROWS, SLOTS, [numbers(ROWS, 2)], DEVICE)
    rows = rowed(50, -1, 3, 50)
    assert admit(cache, rows.int()).slots.tolist() == [(slot := int(cache.directory[50])), -1, 3, slot]


# -- as a table that is all hot ----------------------------------------------------------------------------------


class Flights:
    """Batches through a cache, each admitted while the one before is still to be updated: on a card, beside it.

    An admission waits for the landing before the last, and whether it finds the last one is chance. So three batches
    may be in flight; if it waited for none, a quick stream would have more of them out than there are slots for.
    """

    def __init__(self, cache: RowCache) -> None:
        self.cache = cache
        self._side = torch.cuda.Stream(DEVICE) if DEVICE.type == "cuda" else None
        if self._side is not None:
            self._landed = [torch.cuda.current_stream().record_event()] * 2

    def admit(self, rows: Tensor) -> tuple[Admitted, Any]:
        """Slots, and the event after which they are right."""
        if self._side is None:
            return admit(self.cache, rows), None
        self._side.wait_event(self._landed[-2])
        with torch.cuda.stream(self._side):
            return admit(self.cache, rows), self._side.record_event()

    def update(self, found: tuple[Admitted, Any], step: RowStep, grads: Tensor) -> None:
        """Different rows take a step in their slots, and land."""
        (slots, number), ready = found
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)
            for part in (slots, number):
                part.record_stream(torch.cuda.current_stream())
        at = slots.clamp(min=0)  # of a batch that is refused there are none, and who counts those tells it
        stepped([column.hot for column in self.cache.columns], at, step, grads)
        land(self.cache, number)
        if ready is not None:
            self._landed.append(torch.cuda.current_stream().record_event())


def stepped(columns: list[Tensor], at: Tensor, step: RowStep, grads: Tensor) -> None:
    """Rows at these places of columns, the rows and their state, take a step."""
    rows, *states = (column[at] for column in columns)
    new, parts = update_rows(step, rows.float(), states, grads)
    for column, values in zip(columns, [new, *parts], strict=True):
        column[at] = values.to(column.dtype)


@pytest.mark.parametrize(
    ("state", "dim", "dtype"),
    [
        (RowRule("sgd"), 1, torch.float32),
        (RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),)), 5, torch.float32),
        (RowRule("adam", (StateColumn("exp_avg"), StateColumn("exp_avg_sq"))), 16, torch.float32),
        (RowRule("adagrad", (StateColumn("sum"),)), 3, torch.bfloat16),
        (RowRule("sgd"), 6, torch.float16),
    ],
    ids=lambda part: part.kind if isinstance(part, RowRule) else str(part),
)
def test_training_through_a_cache_one_batch_ahead_equals_a_hot_table_bit_for_bit(
    state: RowRule, dim: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(dim)
    values = [numbers(ROWS, dim, dtype=dtype)]
    values += [torch.full((ROWS,) if part.per_row else (ROWS, dim), part.fill) for part in state.state]
    trained_alike(made(ROWS, THREE, values, DEVICE), values, state, [batch(14).unique() for _ in range(8)])


@pytest.mark.skipif(not INTERPRETED, reason="a card has its own order")
@pytest.mark.parametrize("seed", range(3))
def test_programs_may_run_at_once_and_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    interleave(monkeypatch, seed)
    torch.manual_seed(seed)
    values = [numbers(ROWS, 3), torch.zeros(ROWS)]
    rule = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),))
    cache = made(ROWS, THREE, values, DEVICE)
    trained_alike(cache, values, rule, [batch(24).unique() for _ in range(6)])
    refused = admit(cache, torch.arange(THREE + 1))
    assert bool((refused.slots == NO_ID).all())
    sound(cache)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no threads that could meet")
def test_large_batches_that_share_rows_equal_a_hot_table_bit_for_bit() -> None:
    torch.manual_seed(0)
    rule = RowRule("rowwise_adagrad", (StateColumn("sum", per_row=True),))
    rows, ids = scaled(60, 1_000_000), scaled(12, 200_000)
    values = [numbers(rows, 32), torch.zeros(rows)]
    cache = made(rows, 2 * ids, values, DEVICE, Sizes())  # of a million rows three batches have 342,000
    trained_alike(cache, values, rule, [batch(ids, rows).unique() for _ in range(scaled(6, 30))])


def trained_alike(cache: RowCache, values: list[Tensor], rule: RowRule, batches: list[Tensor]) -> None:
    """Train with different rows of each batch through the cache, and a hot table: they are equal in the end."""
    hot = [column.to(DEVICE) for column in values]
    gradients = [torch.randn(len(rows), *values[0].shape[1:]).to(DEVICE) for rows in batches]
    flights = Flights(cache)
    coming = flights.admit(batches[0])
    for number, (rows, grads) in enumerate(zip(batches, gradients, strict=True)):
        now = coming
        if number + 1 < len(batches):
            coming = flights.admit(batches[number + 1])  # before this one has changed
        step = RowStep(rule=rule, lr=0.1, step=number + 1, eps=1e-8, beta1=0.9, beta2=0.999)
        flights.update(now, step, grads)
        stepped(hot, rows, step, grads)
    assert cache.figures().moved > 0
    assert cache.figures().refused == 0
    sound(cache)
    assert all(same_bits(contents(cache, n), column) for n, column in enumerate(hot))


@captures
def test_an_admission_can_be_replayed_as_a_graph() -> None:
    torch.manual_seed(0)
    values = numbers(ROWS, 8)
    cache, rows = made(ROWS, SLOTS, [values], DEVICE), batch(9)
    admit(cache, rows)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        slots, number = admit(cache, rows)
        land(cache, number)
    for _ in range(10):
        rows.copy_(batch(9))
        graph.replay()
        assert torch.equal(cache.owner[slots].long(), rows)
    assert cache.figures().admissions == 11
    assert cache.figures().moved > 0
    assert same_bits(contents(cache, 0), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_bit_of_a_row_changes_on_its_way(dtype: torch.dtype) -> None:
    words = {torch.float32: torch.int32, torch.float16: torch.int16}[dtype]
    bits = torch.iinfo(words)
    values = torch.randint(bits.min, bits.max, (ROWS, 3), dtype=words).view(dtype)  # NaN of all kinds among them
    cache = made(ROWS, SLOTS, [values], DEVICE)
    for first in (40, 20, 0):
        land(cache, admit(cache, torch.arange(first, first + 20, device=DEVICE)).number)
        assert same_bits(read(cache, 0, torch.arange(ROWS, device=DEVICE)), values)


# -- a single admission ------------------------------------------------------------------------------------------


def test_an_empty_batch_moves_nothing() -> None:
    cache = made(ROWS, SLOTS, [numbers(ROWS, 2)], DEVICE)
    assert len(admit(cache, rowed()).slots) == 0
    assert cache.figures()[:4] == (1, 0, 0, 0)
    assert admit(cache, rowed(59, 0)).slots.tolist()[1] == 0  # the next is as it should be
    sound(cache)


def test_hot_rows_stay_where_they_are() -> None:
    cache = made(ROWS, SLOTS, [numbers(ROWS, 2)], DEVICE)
    rows = torch.arange(SLOTS, device=DEVICE)
    assert torch.equal(admit(cache, rows.repeat(2)).slots, rows.repeat(2))
    assert (cache.figures().moved, cache.figures().hit_rate) == (0, 1.0)


def test_a_batch_of_cold_rows_may_fill_all_slots() -> None:
    values = numbers(ROWS, 2)
    cache = made(ROWS, SLOTS, [values], DEVICE)
    rows = torch.arange(ROWS - SLOTS, ROWS, device=DEVICE)
    for _ in range(2):  # moved, then found
        assert sorted(admit(cache, rows).slots.tolist()) == list(range(SLOTS))
    assert cache.figures()[1:4] == (2 * SLOTS, SLOTS, SLOTS)
    assert same_bits(contents(cache, 0), values)


@pytest.mark.parametrize("before", [0, 5])
def test_one_row_too_many_is_refused_and_nothing_moves(before: int) -> None:
    values = numbers(ROWS, 2)
    cache = made(ROWS, SLOTS, [values], DEVICE)
    in_flight = admit(cache, torch.arange(before, device=DEVICE))
    was = cache.directory.tolist()
    rows = torch.arange(30, 30 + SLOTS - before + 1, device=DEVICE)
    assert admit(cache, torch.cat([rows, rowed(-5)])).slots.tolist() == [*[NO_ID] * len(rows), -5]
    assert cache.directory.tolist() == was
    assert (cache.figures().refused, cache.figures().lacking, cache.figures().moved) == (1, 1, 0)
    assert same_bits(contents(cache, 0), values)
    land(cache, in_flight.number + 1)
    assert NO_ID not in admit(cache, rows if before else rows[1:]).slots.tolist()
    sound(cache)
    assert same_bits(contents(cache, 0), values)


def test_a_cache_of_all_rows_never_moves_one() -> None:
    cache = made(10, 10, [numbers(10, 2)], DEVICE)
    rows = torch.arange(10, device=DEVICE)
    for _ in range(3):
        assert torch.equal(admit(cache, rows.flip(0)).slots, rows.flip(0))
    write(cache, 0, rows[3:5], torch.ones(2, 2, device=DEVICE))
    assert bool((read(cache, 0, rows).sum(1) == 2.0)[3:5].all())
    assert cache.figures().moved == 0


# -- who goes ----------------------------------------------------------------------------------------------------


def test_rows_in_use_stay_while_others_pass_through() -> None:
    cache = made(ROWS, 16, [numbers(ROWS, 2)], DEVICE)
    for step in range(12):
        rows = torch.cat([rowed(1, 2, 3), torch.arange(2, device=DEVICE) + 20 + 2 * step % 40])
        land(cache, admit(cache, rows).number)
    figures = cache.figures()
    assert (figures.ids, figures.cold_ids) == (60, 24)  # the three were always there


def test_rows_of_a_batch_in_flight_stay_until_it_has_landed() -> None:
    cache, first = made(ROWS, 12, [numbers(ROWS, 2)], DEVICE), rowed(30, 31, 32, 33)
    slots, number = admit(cache, first)
    assert NO_ID not in admit(cache, torch.arange(34, 42, device=DEVICE)).slots.tolist()
    assert admit(cache, rowed(42)).slots.tolist() == [NO_ID]  # all slots are in use
    assert cache.directory[first].tolist() == slots.tolist()
    land(cache, number)
    assert sorted(admit(cache, rowed(42, 43, 44, 45)).slots.tolist()) == sorted(slots.tolist())
    assert bool((cache.directory[first] < 0).all())


# -- figures, and rows wherever they are -------------------------------------------------------------------------


def test_figures_count_ids_and_the_bytes_that_moved_each_way() -> None:
    cache = made(ROWS, SLOTS, [numbers(ROWS, 3), numbers(ROWS)], DEVICE)
    admit(cache, rowed(0, 1, 50, 50, 51, -1, ROWS, 0))
    figures = cache.figures()
    assert figures._asdict() == {
        **{"admissions": 1, "ids": 6, "cold_ids": 3, "moved": 2},
        **{"bytes_each_way": 2 * 16, "refused": 0, "lacking": 0},
    }
    assert figures.hit_rate == 0.5


@pytest.mark.parametrize(
    ("dims", "dtype"),
    [((), torch.float32), ((1,), torch.float16), ((5,), torch.bfloat16), ((6,), torch.float16), ((33,), torch.float32)],
)
def test_rows_are_read_and_written_wherever_they_are(dims: tuple[int, ...], dtype: torch.dtype) -> None:
    values = [numbers(ROWS, 2), numbers(ROWS, *dims, dtype=dtype)]
    cache = made(ROWS, SLOTS, values, DEVICE)
    plain = made(ROWS, SLOTS, values, CPU)
    admit(cache, rowed(59, 40, 3))
    rows = rowed(3, 59, 40, 0, 30, -1, ROWS, 21, 22, NO_ID)
    assert same_bits(read(cache, 1, rows), reference.read(plain, 1, rows.cpu()))
    new = torch.full((len(rows), *dims), 7.0, dtype=dtype) + torch.arange(len(rows)).view(-1, *[1] * len(dims))
    write(cache, 1, rows, new.to(dtype).to(DEVICE))
    reference.write(plain, 1, rows.cpu(), new.to(dtype))
    assert same_bits(contents(cache, 1), contents(plain, 1))
    assert same_bits(contents(cache, 0), values[0])
    assert read(cache, 1, rowed()).shape == (0, *dims)
