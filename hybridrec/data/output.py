"""Outputs that appear whole or not at all: written beside under a hidden name, renamed into place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")


def check_compression(name: str) -> str:
    """The name of a Parquet compression, if it is one.

    >>> check_compression("zstd")
    'zstd'
    """
    if name not in COMPRESSIONS:
        raise ValueError(f"compression {name!r} is not one of {', '.join(COMPRESSIONS)}")
    return name


@contextmanager
def atomic_file(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it into place on success, delete it on any error.

    An existing file is refused unless `force`. After Ctrl-C or an error nothing is left; after SIGKILL at
    most a hidden file (name starting with a dot, which no reader lists) remains, and `path` is as it was.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("hello")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file in it, such as {target / 'data.parquet'}")
    _check(target, force)
    temporary = _beside(target)
    try:
        with _named(target, temporary):
            yield temporary
            _check(target, force)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it into place on success, delete it on any error.

    `force` replaces an existing folder only when it holds nothing but `part-*.parquet` files, so that a
    mistyped path costs nobody their home folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "out"
    >>> with atomic_folder(folder) as temporary:
    ...     _ = (temporary / "part-0.parquet").write_text("x")
    >>> [p.name for p in folder.iterdir()]
    ['part-0.parquet']
    """
    target = Path(path)
    _check(target, force)
    _check_replaceable(target)
    temporary = _beside(target)
    old = temporary.with_suffix(".old")
    with _named(target, temporary):
        temporary.mkdir()
    try:
        yield temporary
        _check(target, force)
        if target.exists():
            _check_replaceable(target)
            os.replace(target, old)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not target.exists():
            os.replace(old, target)
        shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


def _check(target: Path, force: bool) -> None:
    check_folder(target.parent)
    if target.exists() and not force:
        raise FileExistsError(f"{target} exists; pass --force (force=True) to replace it")


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not there, or that cannot be written to.

    >>> check_folder(Path("/no/such/folder"))
    Traceback (most recent call last):
    FileNotFoundError: folder /no/such/folder does not exist; create it first
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, so nothing can be written into it; name another folder")
    if not folder.is_dir():
        raise FileNotFoundError(f"folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"folder {folder} cannot be written to; name another, or change its permissions")


def check_no_input(target: str | os.PathLike[str], inputs: Iterable[str]) -> None:
    """Refuse to write over one of the files that are read, whatever it is called.

    >>> check_no_input(__file__, ["clicks.csv", __file__])
    Traceback (most recent call last):
    ValueError: ...output.py is one of the files to read; name another file to write
    """
    if os.path.exists(target) and any(os.path.exists(each) and os.path.samefile(target, each) for each in inputs):
        raise ValueError(f"{target} is one of the files to read; name another file to write")


@contextmanager
def _named(target: Path, temporary: Path) -> Iterator[None]:
    """Within it, an error about the temporary name is told of the one that was asked for."""
    try:
        yield
    except OSError as error:
        if temporary.name not in str(error):
            raise
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(f"{target} cannot be written: {why}; name another folder, or see to its disk") from error


def _check_replaceable(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise NotADirectoryError(f"{target} is a file and several files were asked for; name a folder")
    for entry in target.iterdir():
        if not (entry.name.startswith("part-") and entry.name.endswith(".parquet")):
            raise FileExistsError(
                f"{target} holds {entry.name}; only a folder of part-*.parquet files is replaced by --force"
            )
