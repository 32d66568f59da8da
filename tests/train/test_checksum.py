"""Checksums by block."""

from __future__ import annotations

import xxhash

from hybridrec.train import checksum


def test_each_block_has_the_xxh64_of_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "BLOCK", 10)
    data = bytes(range(25))
    (tmp_path / "a").write_bytes(data)
    wanted = [xxhash.xxh64(data[start : start + 10]).hexdigest() for start in (0, 10, 20)]
    assert checksum.checksums(tmp_path / "a") == wanted


def test_an_empty_file_has_no_blocks(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    assert checksum.checksums(tmp_path / "a") == []
    assert checksum.damaged(tmp_path / "a", []) is None


def test_damage_has_a_place(tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "BLOCK", 10)
    (tmp_path / "a").write_bytes(bytes(25))
    wanted = checksum.checksums(tmp_path / "a")
    assert checksum.damaged(tmp_path / "a", wanted) is None
    (tmp_path / "a").write_bytes(bytes(22) + b"\1" + bytes(2))
    assert checksum.damaged(tmp_path / "a", wanted) == (
        "bytes 20 to 24 are not those that were written: their checksum differs"
    )
    (tmp_path / "a").write_bytes(b"\1" * 25)
    assert "bytes 0 to 9 " in str(checksum.damaged(tmp_path / "a", wanted))
    assert "and 2 more such blocks" in str(checksum.damaged(tmp_path / "a", wanted))
