from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import triton
import triton.language as tl

from hybridrec.ops.features import of as line
from hybridrec.ops.row_groups import triton_eight, triton_sort
from hybridrec.ops.row_groups.triton import count_occurrences, turned
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytestmark = needs_gpu


@triton.jit
def _sort(values, out, N: tl.constexpr, BITS: tl.constexpr):
    tl.store(out + tl.arange(0, N), triton_sort.ascending(tl.load(values + tl.arange(0, N)), BITS))


@pytest.mark.parametrize("bits", [1, 3, 5] if INTERPRETED else [1, 3, 5, 9, 11])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers_are_sorted(bits, dtype):
    torch.manual_seed(bits)
    values = torch.randperm(2**bits, device=DEVICE).to(dtype) * (2 ** (28 if dtype == torch.int32 else 50) >> bits)
    values -= values.max() // 2
    out = torch.empty_like(values)
    _sort[(1,)](values, out, N=2**bits, BITS=bits)
    assert torch.equal(out, values.sort().values)


@triton.jit
def _take_apart(values, neighbours, abreast, back, THREADS: tl.constexpr):
    x, t = tl.load(values + tl.arange(0, 8 * THREADS)), tl.arange(0, THREADS)
    of_thread, of_turn = triton_eight.eight(x, THREADS), triton_eight.abreast(x, THREADS)
    for r in tl.static_range(8):
        tl.store(neighbours + r * THREADS + t, of_thread[r])
        tl.store(abreast + r * THREADS + t, of_turn[r])
    tl.store(back + tl.arange(0, 8 * THREADS), triton_eight.joined(of_thread, THREADS))
    tl.store(back + 8 * THREADS + tl.arange(0, 8 * THREADS), triton_eight.in_line(of_turn, THREADS))


@pytest.mark.parametrize("threads", [2, 32])
def test_a_thread_has_eight_neighbours_or_every_so_many_th_number(threads):
    values = torch.randperm(8 * threads, device=DEVICE)
    neighbours, abreast, back = torch.empty_like(values), torch.empty_like(values), torch.empty_like(values).repeat(2)
    _take_apart[(1,)](values, neighbours, abreast, back, THREADS=threads)
    assert torch.equal(neighbours.view(8, threads), values.view(threads, 8).T)
    assert torch.equal(abreast, values)
    assert torch.equal(back.view(2, -1), values.expand(2, -1))


@triton.jit
def _count_turns(seen, programs, turns):
    program = turned(tl.program_id(0), programs, turns)
    if program < programs:
        tl.atomic_add(seen + program, 1)


@pytest.mark.parametrize(("programs", "turns"), [(1, 64), (7, 2), (12, 4), (13, 4), (5, 1)])
def test_each_program_has_its_turn_once(programs, turns):
    seen = torch.zeros(programs, dtype=torch.int32, device=DEVICE)
    _count_turns[(-(-programs // turns) * turns,)](seen, programs, turns)
    assert seen.tolist() == [1] * programs


# The ids of the second need more than 32 bits beside their lanes, those of the third could be such that do.
@pytest.mark.parametrize(("size", "lowest"), [(40, 0), (2**28, 2**28 - 40), (2**28, 0)])
def test_occurrences_of_a_row_get_ranks_of_their_own_and_rows_their_counts(size, lowest):
    torch.manual_seed(0)
    count, sorted_ids = 37, 16
    ids = (lowest + torch.randint(0, 30, (count,))).to(DEVICE)
    ids[::9] = size + 1  # have no row
    features = torch.zeros(1, line.LENGTH, dtype=torch.int64, device=DEVICE)
    for at, value in ((line.SIZE, size), (line.COUNT, count), (line.BASE, -lowest)):
        features[0, at] = value
    programs = -(-count // sorted_ids)
    first = torch.tensor([0, programs], dtype=torch.int32, device=DEVICE)
    places = torch.zeros(40, dtype=torch.int32, device=DEVICE)
    rows, ranks = torch.full((2, programs, sorted_ids), 99, dtype=torch.int32, device=DEVICE).unbind()
    lanes = torch.full((programs, sorted_ids), 99, dtype=torch.int16, device=DEVICE)
    firsts, numbers = torch.full_like(lanes, 99), torch.full((programs,), 99, dtype=torch.int32, device=DEVICE)
    count_occurrences[(programs + programs % 2,)](
        *(ids, features, first, places, rows, lanes, ranks, firsts, numbers, programs, 2),
        **{"IDS": sorted_ids, "BITS": 4, "FEATURES": 1, "STEPS": 1},
    )
    known = ids[ids < size].cpu() - lowest
    assert torch.equal(places.cpu(), torch.bincount(known, minlength=40).int())
    found = []
    for program in range(programs):
        for row, lane, rank in zip(*(part[program].tolist() for part in (rows, lanes, ranks)), strict=True):
            at = program * sorted_ids + lane
            there = at < count and ids[at] < size
            assert (row, rank >= 0) == ((int(ids[at]), True) if there else (-1, False))
            found += [(row - lowest, rank)] * there
    expected = [[at for at, rank in enumerate(line) if rank == 0] for line in ranks.tolist()]
    told = [sorted(line[:number]) for line, number in zip(firsts.tolist(), numbers.tolist(), strict=True)]
    assert told == expected
    assert sorted(found) == sorted((row, k) for row, n in enumerate(places.tolist()) for k in range(n))
