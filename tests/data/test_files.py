"""From what the user typed to the list of files."""

from __future__ import annotations

import errno
import pickle
import sys
from pathlib import Path

import fsspec
import pytest
from pyarrow import fs

from hybridrec.data.files import File, NoFiles, Retry, find_files, hive_constants, transient


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(files: list[File], root: Path) -> list[str]:
    return [file.path.removeprefix(f"{root}/") for file in files]


def test_a_folder_gives_its_data_files_sorted_and_skips_hidden_ones(tmp_path: Path):
    touch(tmp_path, "b.parquet", "a/c.parquet", "_SUCCESS", ".b.parquet.crc", "_tmp/d.parquet", "README.md")
    assert names(find_files(tmp_path), tmp_path) == ["a/c.parquet", "b.parquet"]


def test_a_folder_without_known_suffixes_gives_the_files_without_suffix(tmp_path: Path):
    touch(tmp_path, "000000_0", "000001_0", "notes.txt")
    assert names(find_files(str(tmp_path)), tmp_path) == ["000000_0", "000001_0"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b1.parquet", "b2.parquet"]),
        ("b?.parquet", ["b1.parquet", "b2.parquet"]),
        ("b[2-9].parquet", ["b2.parquet"]),
        ("*/x.parquet", ["c/x.parquet"]),
        ("c/*", ["c/d/y.parquet", "c/x.parquet"]),
        ("**/*.parquet", ["a.parquet", "b1.parquet", "b2.parquet", "c/d/y.parquet", "c/x.parquet"]),
        ("c/**", ["c/d/y.parquet", "c/x.parquet"]),
        ("c*/d/y.parquet", ["c/d/y.parquet"]),
    ],
)
def test_a_glob_matches_like_a_shell(tmp_path: Path, pattern: str, expected: list[str]):
    touch(tmp_path, "b2.parquet", "b1.parquet", "a.parquet", "c/x.parquet", "c/d/y.parquet", "_z.parquet")
    assert names(find_files(f"{tmp_path}/{pattern}"), tmp_path) == expected


def test_a_relative_glob_and_folder_keep_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "a.parquet", "day=1/b.parquet")
    monkeypatch.chdir(tmp_path)
    assert [file.path for file in find_files("*.parquet")] == ["a.parquet"]
    assert [file.path for file in find_files("day=1")] == ["day=1/b.parquet"]
    assert sorted(file.path.removeprefix("./") for file in find_files(".")) == [
        "a.parquet",
        "day=1/b.parquet",
    ]


def test_an_existing_file_whose_name_looks_like_a_glob_is_taken_literally(tmp_path: Path):
    touch(tmp_path, "a[1].parquet", "a1.parquet")
    assert names(find_files(f"{tmp_path}/a[1].parquet"), tmp_path) == ["a[1].parquet"]


def test_a_list_keeps_its_order_and_expands_each_entry(tmp_path: Path):
    touch(tmp_path, "z.parquet", "a/2.parquet", "a/1.parquet")
    found = find_files([tmp_path / "z.parquet", tmp_path / "a"])
    assert names(found, tmp_path) == ["z.parquet", "a/1.parquet", "a/2.parquet"]


def test_a_file_named_twice_is_refused(tmp_path: Path):
    touch(tmp_path, "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet' is listed twice"):
        find_files([tmp_path, tmp_path / "a.parquet"])


@pytest.mark.parametrize("pattern", ["*.parquet", "nowhere/*.parquet", ""])
def test_no_match_is_an_error_that_shows_the_pattern(tmp_path: Path, pattern: str):
    with pytest.raises(NoFiles, match="matches no file") as raised:
        find_files(f"{tmp_path}/{pattern}")
    assert pattern in str(raised.value)


def test_an_empty_list_and_a_wrong_type_are_errors():
    with pytest.raises(NoFiles, match="empty list"):
        find_files([])
    with pytest.raises(TypeError, match="got 3 of type int"):
        find_files([3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"pyarrow\.fs or fsspec"):
        find_files("a.parquet", filesystem="s3")


def test_key_value_folders_become_constants_also_when_typed(tmp_path: Path):
    touch(tmp_path, "day=3/city=a%20b/x.parquet", "day=__HIVE_DEFAULT_PARTITION__/x.parquet")
    found = find_files(tmp_path)
    assert [file.constants for file in found] == [{"day": "3", "city": "a b"}, {"day": None}]
    assert find_files(tmp_path / "day=3" / "city=a%20b" / "x.parquet")[0].constants == found[0].constants
    assert all(file.constants == {} for file in find_files(tmp_path, hive=False))


def test_a_file_name_with_an_equals_sign_is_no_folder():
    assert hive_constants("a/day=3.parquet") == {}


def test_a_file_url_reads_the_local_file_system(tmp_path: Path):
    touch(tmp_path, "a b/x.parquet")
    (file,) = find_files(f"file://{tmp_path}/a b/*.parquet")
    assert file.local
    assert file.path == f"{tmp_path}/a b/x.parquet"


def test_an_fsspec_url_and_an_fsspec_file_system_find_the_same_files():
    memory = fsspec.filesystem("memory")
    memory.pipe({"/files-test/day=1/a.parquet": b"x", "/files-test/day=2/b.parquet": b"x"})
    try:
        by_url = find_files("memory://files-test/day=*/*.parquet")
        by_system = find_files("/files-test", filesystem=memory)
        assert [file.path for file in by_url] == [file.path for file in by_system]
        assert [file.constants for file in by_url] == [{"day": "1"}, {"day": "2"}]
        assert by_url[0].name.startswith("memory://")
        copy = pickle.loads(pickle.dumps(by_url[0]))
        assert copy.filesystem.open_input_file(copy.path).read() == b"x"
    finally:
        memory.rm("/files-test", recursive=True)


def test_a_url_that_nobody_can_open_names_the_remedy(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="no file system for nosuch://"):
        find_files("nosuch://bucket/a.parquet")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ValueError, match="pip install fsspec"):
        find_files("oss://bucket/a.parquet")


def test_retry_waits_longer_each_time_and_gives_up_after_its_attempts():
    waits: list[float] = []
    calls = []

    def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("connection reset")
        return "done"

    assert Retry(attempts=3, wait=0.5, sleep=waits.append).call(flaky) == "done"
    assert waits == [0.5, 1.0]
    calls.clear()
    with pytest.raises(OSError, match="connection reset"):
        Retry(attempts=2, sleep=waits.append).call(flaky)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("error", "local", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), False, False),
        (PermissionError(errno.EACCES, "no"), False, False),
        (OSError("Corrupt snappy compressed data."), True, False),
        (OSError("curl: reset by peer"), False, True),
        (OSError(errno.EIO, "stale"), True, True),
        (TimeoutError("slow"), False, True),
        (ValueError("not OS"), False, False),
    ],
)
def test_only_errors_that_may_pass_are_transient(error: Exception, local: bool, expected: bool):
    assert transient(error, local) is expected


def test_a_listing_that_fails_once_is_tried_again(tmp_path: Path):
    touch(tmp_path, "a.parquet")

    class Flaky(fsspec.get_filesystem_class("file")):
        protocol = "flaky-listing"
        failures = 1

        def ls(self, path, detail=True, **kwargs):
            if Flaky.failures:
                Flaky.failures -= 1
                raise OSError("503 slow down")
            return super().ls(path, detail=detail, **kwargs)

    waits: list[float] = []
    found = find_files(f"{tmp_path}/*.parquet", filesystem=Flaky(), retry=Retry(sleep=waits.append))
    assert names(found, tmp_path) == ["a.parquet"]
    assert len(waits) == 1
    assert not isinstance(found[0].filesystem, fs.LocalFileSystem)
