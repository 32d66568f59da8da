"""The plain code that kernels are compared with: what it promises, for any sequence of batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridrec.ops.row_cache.cache import RowCache
from hybridrec.ops.row_cache.reference import admit, land, read
from hybridrec.types.id_block import NO_ID
from tests.ops.row_cache.caches import contents, made, same_bits, sound

ROWS = 20
CPU = torch.device("cpu")


@given(
    st.integers(1, ROWS),
    st.integers(1, 3),
    st.lists(st.lists(st.integers(-1, ROWS), max_size=9), max_size=9),
)
def test_rows_are_where_the_slots_say_or_the_batch_is_refused_for_a_reason(
    slots: int, flights: int, batches: list[list[int]]
) -> None:
    values = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
    cache = made(ROWS, slots, [values], CPU)
    refused = False
    for number, batch in enumerate(batches):
        rows = torch.tensor(batch, dtype=torch.int64)
        there = {row for row in batch if 0 <= row < ROWS}
        found, last = admit(cache, rows)
        known = (rows >= 0) & (rows < ROWS) & (found != NO_ID)
        sound(cache)
        assert same_bits(contents(cache, 0), values)
        if there and not known.any():
            in_flight = {row for past in batches[max(0, number - flights + 1) : number + 1] for row in past}
            assert refused or len(in_flight & set(range(ROWS))) > slots
            refused = True  # what it had stamped stays in use, so that fewer may fit than counted here
        else:
            assert {row for row, there in zip(batch, known.tolist(), strict=True) if there} == there
            assert same_bits(cache.columns[0].hot[found[known]], values[rows[known]])
        land(cache, last - flights + 1)


def test_rows_can_be_read_without_being_admitted() -> None:
    values = torch.randn(ROWS, 2)
    cache = made(ROWS, 5, [values], CPU)
    admit(cache, torch.tensor([15, 16]))
    assert same_bits(read(cache, 0, torch.arange(ROWS)), values)
    assert read(cache, 0, torch.tensor([-1, ROWS])).tolist() == [[0, 0], [0, 0]]
    assert cache.figures().admissions == 1


@pytest.mark.parametrize(("rows", "slots"), [(0, 0), (5, 0), (5, 6), (2**31, 5)])
def test_a_cache_must_have_slots_and_no_more_than_rows(rows: int, slots: int) -> None:
    with pytest.raises(ValueError, match=f"{rows:,} rows with {slots:,} slots"):
        RowCache.make(rows, slots, CPU)


class Allocated(TorchDispatchMode):
    """The bytes of all tensors that are made within it; those that are made in place take none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}  # by address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.sizes[found.untyped_storage().data_ptr()] = found.untyped_storage().nbytes()
        return found


def test_a_cache_is_made_in_the_room_that_it_keeps() -> None:
    with Allocated() as allocated:
        cache = RowCache.make(100_000, 20_000, CPU)
    kept = [cache.directory, cache.owner, cache.stamp, cache.passed, cache.lasting, cache.passing]
    assert sum(allocated.sizes.values()) == sum(each.nbytes for each in kept)
    assert cache.directory[[0, 19_999, 20_000, 99_999]].tolist() == [0, 19_999, -1, -80_000]
