"""Memory for cold rows in a file, where that of the host is not enough."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor


class ColdFile:
    """A tensor that is a file without a name in a directory, which is made if it is not there.

    Nobody else can open, cut or remove such a file, and it is gone with the process, however that ends. Its room on the
    disk is set aside at once, so that a disk which fills up later costs no row.

    >>> rows = ColdFile((3, 2), 0.5, torch.float32, tempfile.mkdtemp(), "item")
    >>> rows.tensor.sum()
    tensor(3.)
    """

    def __init__(
        self, shape: Sequence[int], fill: float, dtype: torch.dtype, folder: str | os.PathLike[str], name: str
    ) -> None:
        self._name, self._folder = name, os.fspath(folder)
        size = torch.Size(shape).numel() * dtype.itemsize
        self._map = self._mapped(size) if size else None
        flat = torch.empty(0, dtype=dtype) if self._map is None else torch.frombuffer(self._map, dtype=dtype)
        self.tensor: Tensor = flat.view(tuple(shape))
        if fill:
            self.tensor.fill_(fill)

    def _mapped(self, size: int) -> mmap.mmap:
        try:
            os.makedirs(self._folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder, prefix="cold-rows-") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                made = mmap.mmap(file.fileno(), size)  # which has the file open for itself
        except OSError as error:
            free = free_on_disk(self._folder)
            raise OSError(
                error.errno,
                f"the cold rows of table {self._name!r} need {size:,} bytes of disk in {self._folder}, where {free:,} "
                f"are free: {error.strerror}; give the table another path=, a larger cache, or a smaller type for cold "
                "rows such as cold=torch.int8, or leave path= out to have them in memory of the host",
            ) from error
        made.madvise(mmap.MADV_RANDOM)  # rows come one by one: what lies behind one is not wanted
        return made

    def check(self) -> None:
        """Raise if the file was cut: to read what it had would end the process."""
        if self._map is not None and (found := self._map.size()) < len(self._map):
            raise OSError(
                f"the file with the cold rows of table {self._name!r} in {self._folder} has {found:,} bytes of "
                f"{len(self._map):,}: somebody has cut it, and rows in it are gone; go on from a checkpoint"
            )


def free_on_disk(folder: str | os.PathLike[str]) -> int:
    """Bytes that are free on the disk that a directory is on, or will be."""
    return shutil.disk_usage(_nearest(folder)).free


def disk_of(folder: str | os.PathLike[str]) -> int:
    """The number of the disk that a directory is on, or will be."""
    return os.stat(_nearest(folder)).st_dev


def _nearest(folder: str | os.PathLike[str]) -> Path:
    """The directory itself, or the first of those around it that is there.

    >>> _nearest("/no/such/place").as_posix()
    '/'
    """
    here = Path(folder).absolute()
    return next((part for part in (here, *here.parents) if part.exists()), here)
