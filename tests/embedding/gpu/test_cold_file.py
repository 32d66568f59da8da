"""A file for cold rows: room on a disk that nobody else can touch; without a card."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from pathlib import Path

import pytest
import torch

from hybridrec.embedding.gpu.cold_file import ColdFile, disk_of, free_on_disk


def file_in(folder: Path) -> int:
    """The open file of this process that is in a directory, as /proc has it."""
    found = [each for each in Path("/proc/self/fd").iterdir() if str(folder) in os.path.realpath(each)]
    return int(found[0].name)


def test_rows_are_in_a_file_without_a_name_whose_room_is_set_aside(tmp_path: Path) -> None:
    rows = ColdFile((3000, 8), 0.5, torch.float16, tmp_path / "a" / "b", "item")
    assert torch.equal(rows.tensor, torch.full((3000, 8), 0.5, dtype=torch.float16))
    assert os.listdir(tmp_path / "a" / "b") == []
    about = os.stat(file_in(tmp_path))
    assert about.st_size == 3000 * 16
    assert about.st_blocks * 512 >= about.st_size


def test_the_file_goes_with_the_last_who_has_its_rows(tmp_path: Path) -> None:
    rows = ColdFile((3000,), 0, torch.float32, tmp_path, "item").tensor
    rows[7] = 5
    gc.collect()
    assert rows.sum() == 5
    del rows
    gc.collect()
    with pytest.raises(IndexError):
        file_in(tmp_path)


def test_a_directory_that_vanishes_costs_no_row(tmp_path: Path) -> None:
    rows = ColdFile((100, 2), 0, torch.float32, tmp_path / "rows", "item")
    shutil.rmtree(tmp_path / "rows")
    rows.tensor.fill_(3)
    rows.check()
    assert bool((rows.tensor == 3).all())


def test_no_cold_rows_need_no_directory(tmp_path: Path) -> None:
    assert ColdFile((0, 8), 0, torch.int8, tmp_path / "rows", "item").tensor.shape == (0, 8)
    assert not (tmp_path / "rows").exists()


def test_a_full_disk_is_an_error_that_says_what_is_needed_and_leaves_nothing(tmp_path: Path) -> None:
    said = (
        r"cold rows of table 'item' need 4,\d+,.* bytes of disk in .*, where [\d,]+ are free: .*; give .* another path="
    )
    with pytest.raises(OSError, match=said) as caught:
        ColdFile((2**60,), 0, torch.float32, tmp_path, "item")
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert os.listdir(tmp_path) == []


def test_a_path_that_is_no_directory_is_an_error_with_the_table_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "rows"):
        with pytest.raises(
            OSError, match=r"table 'item' need 12 bytes of disk in .*file.* give the table another path="
        ):
            ColdFile((3,), 0, torch.float32, wrong, "item")


def test_a_file_that_was_cut_is_told_before_it_is_read(tmp_path: Path) -> None:
    rows = ColdFile((3000,), 0, torch.float32, tmp_path, "item")
    rows.check()
    os.ftruncate(file_in(tmp_path), 4096)
    said = r"cold rows of table 'item' in .* has 4,096 bytes of 12,000: .* go on from a checkpoint"
    with pytest.raises(OSError, match=said):
        rows.check()


def test_the_disk_of_a_directory_is_known_before_that_is_made(tmp_path: Path) -> None:
    assert disk_of(tmp_path / "a" / "b") == os.stat(tmp_path).st_dev
    assert free_on_disk(tmp_path / "a" / "b") > 0
