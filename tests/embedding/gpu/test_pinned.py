"""Memory of the host that a card reads."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hybridrec.embedding.gpu.pinned import Pinned

HERE = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_it_is_filled_and_has_pages_of_its_own(dtype):
    pinned = [Pinned((5, 3), 7, dtype, HERE, "user") for _ in range(3)]
    assert all(torch.equal(each.tensor, torch.full((5, 3), 7, dtype=dtype)) for each in pinned)
    assert {each.tensor.data_ptr() % mmap.PAGESIZE for each in pinned} == {0}
    pinned[1].tensor.fill_(2)
    assert [int(each.tensor.sum()) for each in pinned] == [105, 30, 105]


def test_no_rows_take_no_memory():
    assert Pinned((0, 4), 0, torch.float32, HERE, "user").tensor.shape == (0, 4)


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """Within it, this process can have no more than so many bytes beside those that it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to know how much a process has")
def test_a_host_without_so_much_memory_is_an_error_that_says_what_is_needed():
    said = r"cold rows of table 'user' need 4,294,967,296 bytes .*\(Cannot allocate memory\); give .*path=, a dir"
    with address_space(2**30), pytest.raises(ValueError, match=said):
        Pinned((2**28, 4), 0, torch.float32, HERE, "user")
    assert Pinned((2, 4), 1, torch.float32, HERE, "user").tensor.sum() == 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_beside_it_is_copied_to_a_card_as_ever():
    around, pinned = [], []
    for _ in range(50):  # among allocations of the heap, whose pages hold several of them
        around.append(torch.arange(1_500.0))
        pinned.append(Pinned((700,), 1.0, torch.float32, torch.device("cuda"), "user"))
    assert all(torch.equal(each.cuda().cpu(), torch.arange(1_500.0)) for each in around)
    assert all(bool((each.tensor.cuda() == 1).all()) for each in pinned)
