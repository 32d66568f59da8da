"""A warp that may load what another has stored is found in compiled kernels; tests of launches compiled look for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import triton
import triton.language as tl

from tests.gpu import INTERPRETED
from tests.ops.compiled import launches_only_compile
from tests.ops.layouts import holders

pytestmark = [
    pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
]


def expected(at_risk: bool) -> AbstractContextManager[Any]:
    return pytest.raises(AssertionError, match="may load what another has stored") if at_risk else nullcontext()


@triton.jit
def take_flag(flag, out, BARRIER: tl.constexpr, N: tl.constexpr):
    value = tl.load(flag)
    if BARRIER:
        tl.debug_barrier()
    tl.store(flag, 0)
    tl.store(out + tl.arange(0, N), value + tl.arange(0, N))


@pytest.mark.parametrize(("warps", "barrier", "at_risk"), [(4, False, True), (4, True, False), (1, False, False)])
def test_a_flag_that_all_read_and_one_thread_clears_wants_a_barrier_or_one_warp(
    warps: int, barrier: bool, at_risk: bool, tmp_path: Path
) -> None:
    with launches_only_compile(tmp_path), expected(at_risk):
        take_flag[(1,)](*torch.zeros(2, 512, dtype=torch.int32), BARRIER=barrier, N=512, num_warps=warps)


@triton.jit
def count_up(counters):
    if tl.load(counters + 1) > 0:
        tl.store(counters, tl.load(counters) + 1)


def test_a_counter_that_one_thread_reads_and_writes_is_its_own(tmp_path: Path) -> None:
    with launches_only_compile(tmp_path):
        count_up[(1,)](torch.zeros(2, dtype=torch.int32))


@triton.jit
def take_places(places, rows, out, N: tl.constexpr):
    at = places + tl.load(rows + tl.arange(0, N))
    place = tl.load(at)
    tl.store(at, tl.zeros([N], tl.int32))
    tl.store(out + place, tl.arange(0, N))


@pytest.mark.parametrize(("ids", "at_risk"), [(64, True), (128, False), (512, False)])
def test_ids_with_a_thread_of_their_own_may_write_where_they_read(ids: int, at_risk: bool, tmp_path: Path) -> None:
    with launches_only_compile(tmp_path), expected(at_risk):
        take_places[(1,)](*torch.zeros(3, 512, dtype=torch.int32), N=ids)


@triton.jit
def scale_rows(state, rows, WIDTH: tl.constexpr, ADDED: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)[:, None]
    at = rows + i * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(at)
    s = tl.load(state + i)
    if ADDED:
        s += tl.sum(x, 1)[:, None]
    tl.store(state + i, s + 1)
    tl.store(at, x * s)


@pytest.mark.parametrize(("width", "added", "at_risk"), [(1024, False, True), (1024, True, False), (4, False, False)])
def test_a_number_of_a_row_that_lies_in_several_warps_is_stored_behind_a_sum_over_them(
    width: int, added: bool, at_risk: bool, tmp_path: Path
) -> None:
    with launches_only_compile(tmp_path), expected(at_risk):
        scale_rows[(1,)](*torch.zeros(2, 4096), WIDTH=width, ADDED=added, N=1024 // width)


PAIRS = "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [2, 2], order = [1, 0]}>"
LANES = "register = [[0, 1]], lane = [[0, 2], [1, 0], [2, 0], [4, 0], [8, 0]]"
LINEAR = f"#ttg.linear<{{{LANES}, warp = [[16, 0], [0, 0]], block = []}}>"


@pytest.mark.parametrize(
    ("layout", "shape", "place", "warps"),
    [
        (PAIRS, (16, 32), (0, 16), {1}),  # a row has two warps
        (PAIRS, (64, 64), (24, 48), {3}),  # and so it goes on where a tensor is larger
        (PAIRS, (8, 32), (0, 16), {1, 3}),  # there are warps for twice as many rows
        (f"#ttg.slice<{{dim = 1, parent = {PAIRS}}}>", (16,), (8,), {2, 3}),  # all that have some of the row
        (f"#ttg.slice<{{dim = 0, parent = {PAIRS}}}>", (32,), (31,), {1, 3}),
        (LINEAR, (32, 4), (17, 3), {1, 3}),
        ("", (), (), {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_a_layout_tells_which_warps_hold_an_element(
    layout: str, shape: tuple[int, ...], place: tuple[int, ...], warps: set[int]
) -> None:
    assert holders(layout, shape, 4)[place] == warps
