"""Ranks that write one checkpoint: an error of one is an error of all, and no half is taken for a whole."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch

from hybridrec.embedding import Table
from hybridrec.embedding.share import Share
from hybridrec.train.checkpoint import Checkpoints, Contents, load, read_manifest, verify
from hybridrec.train.checkpoint import checkpoints as checkpoints_module
from hybridrec.train.checkpoint import joint as joints
from hybridrec.train.checkpoint import together as module
from hybridrec.train.checkpoint import write as writing
from tests.train.checkpoint.shards import Held, on_ranks, shares_of, store_of

ITEM = Table("item", 4, rows=10)


def models(world: int, scheme: str = "row", value: float = 1.0) -> list[Held]:
    made = [Held({"item": store_of(ITEM, share)}) for share in shares_of(scheme, world, ITEM.dim)]
    for model in made:
        model.stores["item"].weight.fill_(value)
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_checkpoints_are_kept_and_pruned_as_of_one_process(tmp_path, monkeypatch):
    ranks = models(3)

    def save(rank: int) -> list[str]:
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in (1, 2, 3, 4):
                checkpoints.save(Contents(ranks[rank]), step, best=step == 1, metrics={"auc": 0.5})
        return [path.name[-1] for path in checkpoints.all()]

    first, *others = on_ranks(3, save, monkeypatch)
    assert first == ["1", "3", "4"]
    assert all(seen[-1] == "4" for seen in others), "the last one is in place when they go on"
    assert names(tmp_path) == [f"step-{step:09d}" for step in (1, 3, 4)]
    found = read_manifest(tmp_path / "step-000000004")
    assert (found.number, found.metrics, found.ranks) == (4, {"auc": 0.5}, 3)
    assert all(verify(tmp_path / name) == [] for name in names(tmp_path))


def full_disk(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Writing any file of this ending fails."""

    def fail(path: Path, *args: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("_write_text", "_write_tensors", "write_table"):
        real = getattr(writing, name)
        monkeypatch.setattr(
            writing, name, lambda path, *args, real=real: (fail if path.name.endswith(file) else real)(path, *args)
        )


FILES = {"item@rows-0-of-3.arrow": 0, "item@rows-2-of-3.arrow": 2, "dense.safetensors": 0, "manifest.json": 0}


@pytest.mark.parametrize(("file", "rank"), FILES.items())
def test_a_full_disk_of_one_rank_is_an_error_of_all_that_names_it(file, rank, tmp_path, monkeypatch):
    ranks = models(3)

    def save(step: int) -> list[object]:
        def of_rank(rank: int) -> None:
            with Checkpoints(tmp_path) as checkpoints:
                checkpoints.save(Contents(ranks[rank]), step)

        return on_ranks(3, of_rank, monkeypatch)

    assert save(1) == [None] * 3
    with monkeypatch.context() as patch:
        full_disk(patch, file)
        errors = save(2)
    for error in errors:
        assert isinstance(error, OSError)
        assert error.errno == errno.ENOSPC
        assert f"could not be written to {tmp_path}: rank {rank}: No space left on device; free some" in str(error)
    assert [path.name for path in Checkpoints(tmp_path).all()] == ["step-000000001"]
    assert save(3) == [None] * 3
    assert names(tmp_path) == ["step-000000001", "step-000000003"]


def test_an_error_that_is_none_of_the_disk_is_named_too(tmp_path, monkeypatch):
    ranks = models(2)
    monkeypatch.setattr(module, "_add_parts", lambda *given: None)  # so that the parts of rank 1 are missing

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    for error in on_ranks(2, save, monkeypatch):
        assert isinstance(error, RuntimeError)
        assert "rank 0: ValueError: table 'item': the ranks hold shares [(2, 0)] (count, index), which are not" in str(
            error
        )


def test_a_rank_that_cannot_begin_stops_all(tmp_path, monkeypatch):
    """Gradients wait on rank 1; rank 0 has the folder open by then."""
    ranks = models(2)
    monkeypatch.setattr(ranks[1].group, "waiting", lambda: {"item"})

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    first, second = on_ranks(2, save, monkeypatch)
    assert isinstance(first, RuntimeError)
    assert "step 1 was not saved, since rank 1 could not: ValueError: table 'item' has gradients" in str(first)
    assert isinstance(second, ValueError)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("scheme", "message"),
    [("steps", "ranks would save different step: rank 0 has 1, rank 1 has 2"), ("whole", "ranks 0 and 1 would both")],
)
def test_ranks_that_do_not_fit_together_are_told_so(scheme, message, tmp_path, monkeypatch):
    ranks = models(2) if scheme == "steps" else [Held({"item": store_of(ITEM)}) for _ in range(2)]

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1 + rank * (scheme == "steps"), wait=True)

    for error in on_ranks(2, save, monkeypatch):
        assert isinstance(error, ValueError)
        assert message in str(error)
    assert names(tmp_path) == []


def test_ranks_that_declare_a_table_differently_do_not_save_it(tmp_path, monkeypatch):
    ranks = [Held({"item": store_of(ITEM, share, seed=share.index)}) for share in shares_of("row", 2, ITEM.dim)]

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    for error in on_ranks(2, save, monkeypatch):
        assert isinstance(error, RuntimeError)
        assert "rank 0: ValueError: rank 1 has another table 'item' than rank 0: TableInfo(" in str(error)
    assert Checkpoints(tmp_path).latest() is None


def test_a_folder_that_another_process_writes_to_is_an_error_of_all(tmp_path, monkeypatch):
    ranks = models(2)

    def taken(*given: object) -> None:
        raise OSError(errno.EAGAIN, f"another process writes checkpoints to {tmp_path}")

    monkeypatch.setattr(checkpoints_module, "locked", taken)

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    first, second = on_ranks(2, save, monkeypatch)
    assert isinstance(first, OSError)
    assert "step 1 was not saved, since rank 0 could not: BlockingIOError: [Errno 11] another process" in str(second)
    assert names(tmp_path) == []


def test_after_an_error_of_its_own_a_rank_waits_less_long(tmp_path, monkeypatch):
    """The others may be gone: rank 1 fails in training, and rank 0 never finishes the checkpoint."""
    ranks = models(2)
    monkeypatch.setattr(checkpoints_module, "LEFT", 0.5)
    monkeypatch.setattr(module, "_write_first", lambda joint, label: None)

    def train(rank: int) -> None:
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(Contents(ranks[rank]), 1)
            if rank == 1:
                raise KeyError("a bug")

    _, second = on_ranks(2, train, monkeypatch)
    assert isinstance(second, KeyError)
    assert "rank 0 has not finished, and nothing has been written for 1 seconds" in second.__notes__[0]


def test_a_folder_that_other_ranks_cannot_see_is_an_error(tmp_path, monkeypatch):
    ranks = models(2)
    monkeypatch.setattr(joints, "SEEN_WITHIN", 0.1)

    def save(rank: int) -> None:
        Checkpoints(tmp_path / str(rank)).save(Contents(ranks[rank]), 1, wait=True)

    for error in on_ranks(2, save, monkeypatch):
        assert isinstance(error, OSError)
        assert "rank 1 cannot see" in str(error)
        assert "put checkpoints on a file system that all ranks share" in str(error)
    assert names(tmp_path / "0") == []


def test_a_rank_that_says_nothing_is_not_waited_for_without_end(tmp_path, monkeypatch):
    ranks = models(3)
    real = module._write_other
    monkeypatch.setattr(module, "_write_other", lambda joint: None if joint.rank == 2 else real(joint))

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    errors = on_ranks(3, save, monkeypatch, timeout=2.0)
    for rank in (0, 1):
        assert "rank 2 has not written its part, and nothing has been written for 2 seconds" in str(errors[rank])
    assert Checkpoints(tmp_path).latest() is None


def test_one_that_is_slow_is_waited_for_as_long_as_it_writes(tmp_path, monkeypatch):
    ranks = models(2)
    real = writing.write_table

    def slow(path: Path, chunks: object) -> int:
        for _ in range(6 if "rows-1" in path.name else 0):
            time.sleep(0.7)
            with open(path, "ab") as file:
                file.write(b"more")
        return real(path, chunks)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(writing, "write_table", slow)

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    assert on_ranks(2, save, monkeypatch, timeout=4.0) == [None, None]


def test_what_other_ranks_hold_need_not_be_sound_to_load_a_share(tmp_path, monkeypatch):
    """Each rank reads, and checks, the files that its rows are in."""
    ranks = models(3)

    def save(rank: int) -> None:
        Checkpoints(tmp_path).save(Contents(ranks[rank]), 1, wait=True)

    on_ranks(3, save, monkeypatch)
    path = tmp_path / "step-000000001"
    victim = path / "tables" / "item@rows-1-of-3.arrow"
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    load(path, Contents(Held({"item": store_of(ITEM, Share(2, 3))})))
    for share in (Share(), Share(1, 3), Share(0, 2), Share(1, 6)):
        with pytest.raises(ValueError, match=r"item@rows-1-of-3.arrow: bytes .* their checksum differs"):
            load(path, Contents(Held({"item": store_of(ITEM, share)})))
    assert torch.equal(ranks[2].stores["item"].weight, torch.ones(3, 4))
