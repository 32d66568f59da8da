"""What the user typed -> the list of files: paths, globs, folders, lists and URLs on any file system."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

T = TypeVar("T")
PathLike = str | os.PathLike[str]
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_MAGIC = re.compile(r"[*?\[]")
_PERMANENT = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EINVAL,
    errno.ENAMETOOLONG,
}


class NoFiles(FileNotFoundError, ValueError):
    """A pattern, folder or list that holds no file to read."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: where it is, what to call it in messages, and the key=value folders above it."""

    filesystem: fs.FileSystem
    path: str
    name: str
    constants: dict[str, str | None] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which waits, a transient file system error is tried again.

    The wait doubles after each failure. What is missing, forbidden or corrupt is not transient.

    >>> Retry(attempts=5, wait=0.1).pause(3)
    0.8
    """

    attempts: int = 3
    wait: float = 0.5
    sleep: Callable[[float], Any] = time.sleep

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: a file is read at least once; retries are 0 or more")

    def pause(self, failures: int) -> float:
        return self.wait * 2.0**failures

    def again(self, error: Exception, failures: int, local: bool) -> bool:
        """Sleep and say True when the call that met its (failures + 1)th error should be repeated."""
        if failures + 1 >= self.attempts or not transient(error, local):
            return False
        self.sleep(self.pause(failures))
        return True

    def call(self, fn: Callable[[], T], local: bool = False) -> T:
        failures = 0
        while True:
            try:
                return fn()
            except OSError as error:
                if not self.again(error, failures, local):
                    raise
                failures += 1


def transient(error: Exception, local: bool) -> bool:
    """Whether a second try may help. Arrow reports corrupt local data as an OSError without errno."""
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | PermissionError):
        return False
    if error.errno is None:
        return not local
    return error.errno not in _PERMANENT


def find_files(
    paths: PathLike | Iterable[PathLike],
    suffixes: tuple[str, ...] = (".parquet", ".parq", ".pq"),
    filesystem: Any = None,
    hive: bool = True,
    retry: Retry | None = None,
) -> list[File]:
    """List the files behind a path, glob, folder, URL, or a list of these.

    A glob or folder gives its files sorted by path; a list keeps its order. Folders are searched in depth
    for files with one of the suffixes (or, if there is none, for files without any); names that begin with
    `_` or `.` are skipped. Folders named key=value, in the path as typed or below it, become constants of
    their files. `filesystem` is a pyarrow or fsspec file system for paths that are not URLs. A plain path
    is not checked here: reading it reports a missing file.

    >>> [file.constants for file in find_files("clicks/day=3/a.parquet")]
    [{'day': '3'}]
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    retry = retry or Retry()
    found: list[File] = []
    for entry in listed:
        if not isinstance(entry, str | os.PathLike):
            raise TypeError(f"a path must be a str or os.PathLike, got {entry!r} of type {type(entry).__name__}")
        typed = os.fspath(entry)
        matches = _expand(typed, suffixes, filesystem, hive, retry)
        if not matches:
            wanted = ", ".join(suffixes)
            raise NoFiles(f"{typed!r} matches no file; a folder or glob must hold files named {wanted} (not _* or .*)")
        found += matches
    if not found:
        raise NoFiles(f"an empty list of paths was given: {paths!r}; name at least one file, folder or glob")
    seen: set[str] = set()
    for file in found:
        if file.name in seen:
            raise ValueError(
                f"{file.name!r} is listed twice; each file may be named once, so drop the overlapping path"
            )
        seen.add(file.name)
    return found


def _expand(typed: str, suffixes: tuple[str, ...], filesystem: Any, hive: bool, retry: Retry) -> list[File]:
    """The sorted files behind one entry."""
    scheme = urlsplit(typed).scheme if "://" in typed else ""
    if scheme:
        system, base, pattern = _open_url(typed, retry)
    else:
        system = _wrap(filesystem) if filesystem is not None else fs.LocalFileSystem()
        base, pattern = _split_pattern(os.path.expanduser(typed) if filesystem is None else typed)
        if pattern and filesystem is None and os.path.exists(os.path.expanduser(typed)):
            base, pattern = os.path.expanduser(typed), []
    local = isinstance(system, fs.LocalFileSystem)
    prefix = "" if local or not scheme else f"{scheme}://"

    def walk() -> list[str]:
        paths: list[str] = []
        for match in _glob(system, base, pattern):
            paths += _under(system, match, suffixes)
        return sorted(set(paths))

    return [
        File(system, path, prefix + path, hive_constants(path) if hive else {})
        for path in retry.call(walk, local=local)
    ]


def _split_pattern(path: str) -> tuple[str, list[str]]:
    """The folder before the first wildcard, and the parts from there on."""
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join(parts[:first]) or ("/" if path.startswith("/") else ""), parts[first:]


def _open_url(url: str, retry: Retry) -> tuple[fs.FileSystem, str, list[str]]:
    """File system, folder before the first wildcard, pattern parts; pyarrow first, then fsspec."""
    scheme, rest = url.split("://", 1)
    # Behind a URL's path a "?" opens the options of the file system (s3://bucket/a?region=eu-west-1).
    rest, _, query = rest.partition("?")
    base, pattern = _split_pattern(rest)
    address = f"{scheme}://{quote(base, safe='/%=:@!$&()+,;~')}" + (f"?{query}" if query else "")
    try:
        system, path = retry.call(lambda: fs.FileSystem.from_uri(address))
        return system, path, pattern
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # a scheme that this pyarrow does not know
    except OSError as error:
        error.add_note(f"while opening the file system of {url!r}")
        raise
    try:
        import fsspec
    except ImportError:
        raise ValueError(
            f"pyarrow cannot open {scheme}:// URLs ({url!r}); pip install fsspec and its driver for {scheme}"
        ) from None
    try:
        system, path = fsspec.core.url_to_fs(f"{scheme}://{base}")
    except (ImportError, ValueError) as error:
        raise ValueError(f"no file system for {scheme}:// ({url!r}): {error}; install its fsspec driver") from error
    return _wrap(system), path, pattern


def _wrap(filesystem: Any) -> fs.FileSystem:
    """A pyarrow file system, also from an fsspec one."""
    if isinstance(filesystem, fs.FileSystem):
        return filesystem
    if not hasattr(filesystem, "protocol"):
        raise TypeError(f"filesystem must be a pyarrow.fs or fsspec file system, got {filesystem!r}")
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem))


def _glob(system: fs.FileSystem, base: str, pattern: list[str]) -> Iterator[str]:
    """Paths that match, found one folder level at a time; `**` stands for any number of folders."""
    if not pattern:
        yield base
        return
    head, rest = pattern[0], pattern[1:]
    if not _MAGIC.search(head):
        path = _join(base, head)
        if rest or system.get_file_info(path).type != fs.FileType.NotFound:
            yield from _glob(system, path, rest)
        return
    if head == "**":
        yield from _glob(system, base, rest or ["*"])
    for path, folder in _entries(system, base):
        name = path.rsplit("/", 1)[-1]
        if _hidden(name) and not _hidden(head):
            continue
        if head == "**" and folder:
            yield from _glob(system, path, pattern)
        elif head != "**" and fnmatch.fnmatchcase(name, head) and (folder or not rest):
            yield from _glob(system, path, rest)


def _under(system: fs.FileSystem, path: str, suffixes: tuple[str, ...]) -> list[str]:
    """The path itself when it is no folder, else the data files inside it, in depth."""
    if system.get_file_info(path or ".").type != fs.FileType.Directory:
        return [path]
    names = list(_walk(system, path))
    named = [name for name in names if name.lower().endswith(suffixes)]
    return named or [name for name in names if "." not in name.rsplit("/", 1)[-1]]


def _walk(system: fs.FileSystem, folder: str) -> Iterator[str]:
    """The files below a folder, in depth; an object store answers for all levels at once."""
    if isinstance(getattr(system, "handler", None), fs.FSSpecHandler):
        for path, inner in _entries(system, folder):
            if not _hidden(path.rsplit("/", 1)[-1]):
                yield from _walk(system, path) if inner else [path]
        return
    for info in system.get_file_info(fs.FileSelector(folder, recursive=True)):
        inner_parts = info.path[len(folder) :].strip("/").split("/")
        if info.type == fs.FileType.File and not any(map(_hidden, inner_parts)):
            yield info.path


def _entries(system: fs.FileSystem, folder: str) -> list[tuple[str, bool]]:
    """The (path, is a folder) directly inside a folder; none when it does not exist."""
    handler = getattr(system, "handler", None)
    if not isinstance(handler, fs.FSSpecHandler):
        found = system.get_file_info(fs.FileSelector(folder or ".", allow_not_found=True))
        pairs = [(info.path, info.type == fs.FileType.Directory) for info in found]
        return pairs if folder else [(path.removeprefix("./"), inner) for path, inner in pairs]
    try:
        # Not through the handler: it lists with fsspec's find(), which leaves out what it fails to list.
        listed = handler.fs.ls(folder, detail=True)
    except FileNotFoundError:
        return []
    pairs = [(entry["name"].rstrip("/"), entry["type"] == "directory") for entry in listed]
    return [(path, inner) for path, inner in pairs if path.strip("/") != folder.strip("/")]


def _hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _join(base: str, name: str) -> str:
    return f"{base.rstrip('/')}/{name}" if base else name


def hive_constants(path: str) -> dict[str, str | None]:
    """The key=value folders of a path, outermost first; Hive's null folder gives None.

    >>> hive_constants("clicks/day=3/city=Sankt%20Gallen/part-0.parquet")
    {'day': '3', 'city': 'Sankt Gallen'}
    """
    constants: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if key and equals:
            constants[unquote(key)] = None if value == NULL_FOLDER else unquote(value)
    return constants
