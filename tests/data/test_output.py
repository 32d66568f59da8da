"""Outputs appear whole or not at all."""

from __future__ import annotations

import pytest

from hybridrec.data.output import atomic_file, atomic_folder, check_compression


def test_the_file_appears_only_at_the_end(tmp_path):
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("x")
        assert not (tmp_path / "a").exists()
        assert temporary.name.startswith(".")
        assert temporary.parent == tmp_path
    assert (tmp_path / "a").read_text() == "x"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_removes_the_temporary_and_keeps_the_old(tmp_path, error):
    (tmp_path / "a").write_text("old")

    def fail() -> None:
        with atomic_file(tmp_path / "a", force=True) as temporary:
            temporary.write_text("new")
            raise error

    with pytest.raises(error):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path):
    def collide() -> None:
        with atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("mine")
            (tmp_path / "a").write_text("theirs")

    with pytest.raises(FileExistsError, match="exists; pass --force"):
        collide()
    assert (tmp_path / "a").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_folder_or_a_missing_folder_cannot_become_the_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="name a file in it"), atomic_file(tmp_path):
        pass
    with (
        pytest.raises(FileNotFoundError, match="nowhere does not exist"),
        atomic_file(tmp_path / "nowhere/a"),
    ):
        pass


def test_a_folder_is_replaced_at_once_or_stays(tmp_path):
    target = tmp_path / "out"
    for text in ("one", "two"):
        with atomic_folder(target, force=True) as temporary:
            (temporary / "part-0.parquet").write_text(text)
        assert (target / "part-0.parquet").read_text() == text

    def interrupted() -> None:
        with atomic_folder(target, force=True) as temporary:
            (temporary / "part-0.parquet").write_text("three")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (target / "part-0.parquet").read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "out").write_text("x")
    with (
        pytest.raises(NotADirectoryError, match="name a folder"),
        atomic_folder(tmp_path / "out", force=True),
    ):
        pass


def test_an_unknown_compression_lists_the_known_ones():
    with pytest.raises(ValueError, match="'rar' is not one of zstd, snappy, lz4, gzip, brotli, none"):
        check_compression("rar")


def test_an_error_about_the_temporary_names_the_file_that_was_asked_for(tmp_path):
    def fail() -> None:
        with atomic_file(tmp_path / "a") as temporary:
            raise OSError(28, "No space left on device", str(temporary))

    with pytest.raises(OSError, match=r"/a cannot be written: No space left on device; name another folder"):
        fail()


def test_a_folder_that_is_a_file_or_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file is a file, so nothing can be written into it"):
        atomic_file(tmp_path / "file" / "a").__enter__()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="cannot be written to; name another, or change its permissions"):
        atomic_file(tmp_path / "a").__enter__()
