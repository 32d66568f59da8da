"""The manifest: what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hybridrec.embedding.share import Share
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.train import manifest_body as module
from hybridrec.train.checkpoint import CheckpointError, read_manifest
from hybridrec.train.checkpoint.manifest import FileInfo, Manifest, to_text
from hybridrec.train.checkpoint.part_info import PartInfo
from hybridrec.train.checkpoint.table_info import TableInfo

RULE = RowRule("adagrad", (StateColumn("sum", fill=0.1), StateColumn("mean", per_row=True)))
PARTS = PartInfo("tables/a.arrow", 3, Share(0, 2), 16384), PartInfo("tables/b.arrow", 4, Share(1, 2, 1, 3), None, 1)
TABLE = TableInfo(4, "float32", None, 10, 2**64 - 1, 7, RULE, {"eviction": "LRU()"}, PARTS)
MADE = Manifest(
    12,
    3,
    "2026-01-01",
    True,
    {"auc": 0.7, "loss": None},
    {"hybridrec": "0.1"},
    {"a": FileInfo(5, ["ff"])},
    {"ü": TABLE},
    2,
)


def put(folder: Path, **changes: Any) -> Path:
    """A manifest with other entries, whose checksum is right nevertheless."""
    body = {**json.loads(to_text(MADE)), **changes}
    del body["xxh64"]
    body["xxh64"] = module.checksum(body)
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


def test_it_comes_back_as_it_was(tmp_path):
    (tmp_path / "manifest.json").write_text(to_text(MADE))
    assert read_manifest(tmp_path) == MADE
    assert read_manifest(put(tmp_path)) == MADE
    assert MADE.bytes == 5


def test_a_table_of_version_1_has_one_part_which_is_all_of_it(tmp_path):
    table = {**TABLE.to_json(), "file": "tables/a.arrow", "rows": 3, "sketch": 16384}
    del table["parts"]
    found = read_manifest(put(tmp_path, version=1, tables={"ü": table})).tables["ü"]
    assert found.parts == (PartInfo("tables/a.arrow", 3, Share(), 16384),)
    assert (found.rows, found.rule, found.dim) == (3, RULE, 4)


def test_rows_whose_columns_are_in_several_parts_count_once():
    parts = [PartInfo("a", 3, Share(0, 2, 0, 2)), PartInfo("b", 3, Share(0, 2, 2, 2)), PartInfo("c", 4, Share(1, 2))]
    assert dataclasses.replace(TABLE, parts=tuple(parts)).rows == 7


def test_every_changed_byte_is_noticed(tmp_path):
    text = to_text(MADE).encode()
    for place in range(len(text) - 1):  # the last is the end of the line
        spoiled = bytearray(text)
        spoiled[place] ^= 1
        (tmp_path / "manifest.json").write_bytes(spoiled)
        try:
            assert read_manifest(tmp_path) == MADE, f"byte {place} changed the content"  # a space may be another
        except CheckpointError:
            continue


def test_every_cut_is_noticed(tmp_path):
    text = to_text(MADE).encode()
    for length in range(0, len(text) - 2, 7):
        (tmp_path / "manifest.json").write_bytes(text[:length])
        with pytest.raises(CheckpointError, match=r"manifest.json is damaged \(.*\); load another checkpoint"):
            read_manifest(tmp_path)


def test_a_newer_format_is_named_with_who_wrote_it(tmp_path):
    put(tmp_path, version=4, versions={"hybridrec": "7.5"}, something="new")
    with pytest.raises(
        CheckpointError,
        match=r"has format version 4, and this hybridrec reads up to 3; it was written by "
        r"hybridrec 7.5: install that version or a later one",
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zip"}, "is not the manifest of a checkpoint: its format is not 'hybridrec-checkpoint'"),
        ({"version": "1"}, "version is '1'; it must be a whole number from 1 on"),
        ({"colour": 1, "smell": 2}, "has unknown entries colour, smell; valid are best, created"),
        ({"tables": {"a": {}}}, "is not what version 3 writes"),
        ({"files": None}, "is not what version 3 writes"),
    ],
)
def test_what_it_is_not_is_named(changes, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        read_manifest(put(tmp_path, **changes))


def test_a_folder_of_checkpoints_is_told_from_one(tmp_path):
    (tmp_path / "step-000000012").mkdir()
    put(tmp_path / "step-000000012")
    with pytest.raises(CheckpointError, match=r"has no manifest.json, .*; it holds step-000000012: give one of them"):
        read_manifest(tmp_path)
    with pytest.raises(CheckpointError, match="give a folder such as runs/a/checkpoints/step-"):
        read_manifest(tmp_path / "nothing")
