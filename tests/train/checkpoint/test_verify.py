"""Damage is found, and named with its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from hybridrec.embedding import EmbeddingCollection, MinCount, Table
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, load, verify


@pytest.fixture
def saved(tmp_path) -> Path:
    emb = EmbeddingCollection([Table("item", 2, rows=30), Table("user", 2, capacity=9, admission=MinCount(2))])
    model = nn.ModuleDict({"emb": emb, "top": nn.Linear(4, 3)})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(model, {}, {"rng": torch.get_rng_state()}), 1)
    found = checkpoints.latest()
    assert found is not None
    return found


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fresh() -> Contents:
    emb = EmbeddingCollection([Table("item", 2, rows=30), Table("user", 2, capacity=9, admission=MinCount(2))], seed=0)
    emb["item"].weight.fill_(5)
    return Contents(nn.ModuleDict({"emb": emb, "top": nn.Linear(4, 3)}), {}, {"mine": 1})


def refuse(folder: Path, file: str) -> None:
    """Loading is an error that names the file, and changes nothing."""
    contents = fresh()
    with pytest.raises(CheckpointError, match=file) as caught:
        load(folder, contents, strict=False)
    assert "load another checkpoint" in str(caught.value) or file == "manifest.json"
    assert contents.state == {"mine": 1}
    assert (contents.model["emb"]["item"].weight == 5).all()


def test_a_checkpoint_is_sound(saved):
    assert verify(saved) == []
    assert files(saved) == [
        "dense.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "sketches.safetensors",
        "state.json",
        "state.safetensors",
        "tables/emb.item.arrow",
        "tables/emb.user.arrow",
    ]


def test_every_file_that_is_missing_is_named(saved):
    for file in files(saved):
        content = (saved / file).read_bytes()
        (saved / file).unlink()
        (problem,) = verify(saved)
        assert problem.file == file
        assert file == "manifest.json" or problem.what == "it is missing"
        refuse(saved, file)
        (saved / file).write_bytes(content)
    assert verify(saved) == []


def test_every_file_that_is_cut_off_is_named(saved):
    for file in files(saved):
        content = (saved / file).read_bytes()
        for left in (0, 1, len(content) // 2, len(content) - 2):
            (saved / file).write_bytes(content[:left])
            (problem,) = verify(saved)
            assert problem.file == file
            assert (
                file == "manifest.json" or f"it has {left:,} bytes, and {len(content):,} were written" in problem.what
            )
            refuse(saved, file)
        (saved / file).write_bytes(content)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_is_found(saved, data):
    file = data.draw(st.sampled_from([name for name in files(saved) if name != "manifest.json"]))
    content = (saved / file).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    spoiled = bytearray(content)
    spoiled[place] ^= 1 << data.draw(st.integers(0, 7))
    (saved / file).write_bytes(spoiled)
    try:
        (problem,) = verify(saved)
        assert problem.file == file
        assert "their checksum differs" in problem.what
        refuse(saved, file)
    finally:
        (saved / file).write_bytes(content)


def test_a_file_that_the_manifest_does_not_know_is_told_but_harmless(saved):
    (saved / "notes.txt").write_text("mine")
    (problem,) = verify(saved)
    assert str(problem) == "notes.txt: the manifest does not know it; it can be deleted"
    load(saved, fresh())
