"""Kernels with faults that only programs at once show are found out, and those without are not."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the interpreter comes with triton")
pytest.importorskip("greenlet", reason="programs that run together are greenlets")

import triton
import triton.language as tl

from tests.gpu import INTERPRETED

if INTERPRETED:
    from tests.interleaved import interleave

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not INTERPRETED, reason="it is the interpreter that interleaves")]

SEEDS = range(20)


def found(patch: pytest.MonkeyPatch, kernel, programs: int, *sizes: int, **kind: int) -> set[tuple[int, ...]]:
    """All that a kernel leaves in the last of its tensors, int32 and zero at first, by different seeds."""
    results = set()
    for seed in SEEDS:
        with patch.context() as here:
            interleave(here, seed)
            tensors = [torch.zeros(size, dtype=torch.int32) for size in sizes]
            kernel[(programs,)](*tensors, **kind)
            results.add(tuple(tensors[-1].tolist()))
    return results


@triton.jit
def add_plainly(counter):
    tl.store(counter, tl.load(counter) + 1)


@triton.jit
def add_atomically(counter):
    tl.atomic_add(counter, 1, sem="relaxed")


def test_additions_are_lost_unless_they_are_atomic(monkeypatch: pytest.MonkeyPatch):
    assert found(monkeypatch, add_atomically, 8, 1) == {(8,)}
    assert len(found(monkeypatch, add_plainly, 8, 1)) > 1


@triton.jit
def claim(owner, out, N: tl.constexpr):
    """A free place becomes that of one program, which says so; all lanes try."""
    place = tl.arange(0, N)
    was = tl.atomic_cas(owner + place, tl.zeros([N], tl.int32), tl.full([N], 1, tl.int32), sem="relaxed")
    tl.atomic_add(out + place, 1, mask=was == 0, sem="relaxed")


@triton.jit
def claim_plainly(owner, out, N: tl.constexpr):
    place = tl.arange(0, N)
    was = tl.load(owner + place)
    tl.store(owner + place, tl.full([N], 1, tl.int32), mask=was == 0)
    tl.atomic_add(out + place, 1, mask=was == 0, sem="relaxed")


def test_a_place_is_claimed_once_by_compare_and_swap_alone(monkeypatch: pytest.MonkeyPatch):
    assert found(monkeypatch, claim, 5, 4, 4, N=4) == {(1, 1, 1, 1)}
    assert max(max(each) for each in found(monkeypatch, claim_plainly, 5, 4, 4, N=4)) > 1


@triton.jit
def publish(data, flag, out, RELEASED: tl.constexpr, ACQUIRED: tl.constexpr):
    """Program 0 writes and raises a flag; the other reads when it sees it raised, and says what."""
    if tl.program_id(0) == 0:
        tl.store(data, 7)
        tl.atomic_xchg(flag, 1, sem="release" if RELEASED else "relaxed")
    else:
        tl.load(data)  # which a cache may keep
        raised = 0
        while raised == 0:
            raised = tl.atomic_add(flag, 0, sem="acquire" if ACQUIRED else "relaxed")
        tl.store(out, tl.load(data))


@pytest.mark.parametrize(("released", "acquired"), [(True, True), (False, True), (True, False)])
def test_what_is_written_before_a_flag_is_seen_after_it_only_if_released_and_acquired(
    monkeypatch: pytest.MonkeyPatch, released: bool, acquired: bool
):
    results = found(monkeypatch, publish, 2, 1, 1, 1, RELEASED=released, ACQUIRED=acquired)
    assert results == ({(7,)} if released and acquired else {(7,), (0,)})


@triton.jit
def write_all(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N) % 2, tl.program_id(0) * N + tl.arange(0, N))


def test_of_several_lanes_and_programs_that_write_to_one_place_any_may_be_the_last(monkeypatch: pytest.MonkeyPatch):
    results = found(monkeypatch, write_all, 2, 2, N=4)
    assert {each[0] for each in results} == {0, 2, 4, 6}


@triton.jit
def read_own(data, out):
    """A program sees what it has stored, whatever others see."""
    tl.store(data + tl.program_id(0), 5)
    tl.store(out + tl.program_id(0), tl.load(data + tl.program_id(0)))


def test_a_program_sees_its_own_stores(monkeypatch: pytest.MonkeyPatch):
    assert found(monkeypatch, read_own, 4, 4, 4) == {(5, 5, 5, 5)}


@triton.jit
def look_at_masked_lanes(counter, out, N: tl.constexpr):
    lane = tl.arange(0, N)
    drawn = tl.atomic_add(counter + lane, 1, mask=lane < 0, sem="relaxed")
    tl.store(out + lane, drawn + tl.load(counter + lane, mask=lane < 0))


def test_what_lanes_that_are_masked_out_get_is_not_zero(monkeypatch: pytest.MonkeyPatch):
    (left,) = found(monkeypatch, look_at_masked_lanes, 1, 2, 2, N=2)
    assert all(left)


@triton.jit
def fail_in_one(out):
    if tl.program_id(0) == 2:
        tl.static_assert(False, "not here")
    tl.store(out, 0)


def test_an_error_of_a_program_is_that_of_the_launch(monkeypatch: pytest.MonkeyPatch):
    interleave(monkeypatch, 0)
    with pytest.raises(Exception, match="not here"):
        fail_in_one[(4,)](torch.zeros(1, dtype=torch.int32))
