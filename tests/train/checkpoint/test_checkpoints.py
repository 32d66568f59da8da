"""A folder of checkpoints: which are kept, which is the latest, and what a killed or failing writer leaves."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.optim import SGD
from hybridrec.train import manifest_body
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, load, read_manifest, verify
from hybridrec.train.checkpoint import checkpoints as module
from hybridrec.train.checkpoint import lock as locks
from hybridrec.train.checkpoint import manifest as manifests
from hybridrec.train.checkpoint import write as writing
from tests.patience import PATIENCE


def linear(value: float = 0.0) -> Contents:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, value)
    return Contents(model)


def names(checkpoints: Checkpoints) -> list[str]:
    return [path.name.removeprefix("step-").lstrip("0") for path in checkpoints.all()]


def value(path: Path | None) -> float:
    """The weight that was saved there."""
    assert path is not None
    contents = linear()
    load(path, contents)
    return contents.model.weight.item()


def test_an_empty_or_absent_folder_has_none(tmp_path):
    for folder in (tmp_path, tmp_path / "not" / "yet"):
        found = Checkpoints(folder)
        assert (found.all(), found.latest(), found.best()) == ([], None, None)


@pytest.mark.parametrize("keep", [0, -1, 1.5, True, "3"])
def test_keep_is_a_count(keep, tmp_path):
    with pytest.raises(ValueError, match=r"keep is .*; it must be a whole number from 1 on"):
        Checkpoints(tmp_path, keep=keep)


@pytest.mark.parametrize("step", [-1, 1.5, True])
def test_step_is_a_count(step, tmp_path):
    with pytest.raises(ValueError, match=r"step is .*; it must be a whole number from 0 on"):
        Checkpoints(tmp_path).save(linear(), step)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_last_few_are_kept_and_the_best_one(keep, tmp_path):
    with Checkpoints(tmp_path, keep=keep) as checkpoints:
        for step in range(1, 8):
            checkpoints.save(linear(step), step, best=step in (1, 2))
    wanted = sorted({2, *range(8 - keep, 8)})
    assert names(checkpoints) == [str(step) for step in wanted]
    assert value(checkpoints.best()) == 2
    assert value(checkpoints.latest()) == 7
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == [
        p.name for p in checkpoints.all()
    ]


def test_the_same_step_may_be_saved_again(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for weight in (1, 2, 3):
            checkpoints.save(linear(weight), 5)
    assert names(checkpoints) == ["5", "5-1", "5-2"]
    assert value(checkpoints.latest()) == 3


def test_a_run_that_went_back_has_its_last_checkpoint_as_the_latest(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (100, 200, 300, 150):
            checkpoints.save(linear(step), step)
    assert names(checkpoints) == ["300", "150"]
    assert value(checkpoints.latest()) == 150


def test_the_manifest_tells_about_the_run(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(linear(), 7, metrics={"auc": 0.75, "loss": float("nan")}, best=True)
    found = read_manifest(tmp_path / "step-000000007")
    assert (found.step, found.number, found.best, found.metrics) == (7, 1, True, {"auc": 0.75, "loss": None})
    assert found.versions["torch"] == torch.__version__


def test_what_changes_after_save_is_not_saved(tmp_path, monkeypatch):
    """Nothing that the thread writes is shared with the model."""
    emb = EmbeddingCollection([Table("item", 2, rows=3), Table("user", 2, capacity=9)])
    model = nn.ModuleDict({"emb": emb, "top": nn.Linear(4, 1)})
    rows, dense = SGD(emb, lr=0.1, momentum=0.9), torch.optim.Adam(model.parameters())
    state = {"position": torch.zeros(2), "list": [1, {"a": 2}]}
    go = threading.Event()
    monkeypatch.setattr(module, "write", lambda *args: (go.wait(), writing.write(*args))[1])

    def train() -> None:
        ids = {"item": torch.tensor([0, 1]), "user": torch.tensor([7, 8])}
        model["top"](emb(ids).flat).sum().backward()
        rows.step()
        dense.step()

    train()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    moments = {
        name: part.clone() for name, part in rows.state_dict()["state"]["user"].items() if name == "momentum_buffer"
    }
    contents = Contents(model, {"rows": rows, "dense": dense}, state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(contents, 1)
        assert checkpoints.busy
        train()
        state["position"] += 1
        state["list"][1]["a"] = 3
        go.set()
    load(checkpoints.latest(), contents)
    assert contents.state == {"position": contents.state["position"], "list": [1, {"a": 2}]}
    assert contents.state["position"].tolist() == [0, 0]
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())
    after = rows.state_dict()["state"]["user"]
    assert all(torch.equal(after[name], part) for name, part in moments.items())


def test_save_waits_for_the_one_before(tmp_path, monkeypatch):
    running, most = [], []

    def slow(*args):
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return writing.write(*args)

    monkeypatch.setattr(module, "write", slow)
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(3):
            checkpoints.save(linear(), step)
    assert most == [1, 1, 1]


def test_one_that_another_process_removes_while_it_is_looked_at_is_not_there(tmp_path, monkeypatch):
    checkpoints, real = Checkpoints(tmp_path), Path.is_file
    for step in (1, 2):
        checkpoints.save(linear(), step, wait=True)

    def then_removed(path: Path) -> bool:
        found = real(path)
        if path.parent == tmp_path / "step-000000001" and path.suffix == ".safetensors":
            path.parent.rename(tmp_path / "gone")
        return found

    monkeypatch.setattr(Path, "is_file", then_removed)
    assert names(checkpoints) == ["2"]


# -- failures ---------------------------------------------------------------------------------------------


def full_disk(monkeypatch, file: str) -> None:
    """Writing any file of this ending fails."""

    def fail(path: Path, *args: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real_text, real_tensors, real_table = writing._write_text, writing._write_tensors, writing.write_table
    for name, real in (("_write_text", real_text), ("_write_tensors", real_tensors), ("write_table", real_table)):
        monkeypatch.setattr(
            writing, name, lambda path, *args, real=real: (fail if path.name.endswith(file) else real)(path, *args)
        )


FILES = ["item.arrow", "dense.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


@pytest.mark.parametrize("file", FILES)
def test_a_full_disk_is_an_error_of_the_next_call_and_older_checkpoints_stay(file, tmp_path, monkeypatch):
    contents = Contents(EmbeddingCollection([Table("item", 2, rows=3)]))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(contents, 1, wait=True)
    with monkeypatch.context() as patch:
        full_disk(patch, file)
        checkpoints.save(contents, 2)
        message = (
            r"the checkpoint of step 2 \(about .* bytes\) could not be written to .*: No space left on device; free "
        )
        with pytest.raises(
            OSError, match=message + "some space, or keep fewer checkpoints, and save again. Older"
        ) as caught:
            checkpoints.wait()
    assert caught.value.errno == errno.ENOSPC
    assert names(checkpoints) == ["1"]
    assert verify(checkpoints.all()[0]) == []
    assert list(tmp_path.glob("*.part")) == []
    checkpoints.save(contents, 3, wait=True)
    assert names(checkpoints) == ["3"]


def test_an_error_is_raised_by_the_next_save_and_once(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        full_disk(patch, "dense.safetensors")
        checkpoints.save(linear(), 1)
        with pytest.raises(OSError, match="step 1"):
            checkpoints.save(linear(), 2)
    checkpoints.save(linear(), 3, wait=True)
    assert names(checkpoints) == ["3"]


def test_leaving_the_block_raises_or_adds_a_note(tmp_path, monkeypatch):
    full_disk(monkeypatch, "dense.safetensors")
    with pytest.raises(OSError, match="step 1"), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(linear(), 1)
    with pytest.raises(ValueError, match="step is -1") as caught, Checkpoints(tmp_path) as checkpoints:
        any(checkpoints.save(linear(), step) for step in (1, -1))
    assert "a checkpoint was lost: " in caught.value.__notes__[0]


def test_too_little_room_is_known_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 3}))
    monkeypatch.setattr(writing, "_write_all", None)
    with pytest.raises(OSError, match="8 bytes are needed and 3 are free; free some space"):
        Checkpoints(tmp_path).save(linear(), 1, wait=True)


@pytest.mark.slow
def test_a_limit_on_file_size_is_an_error(tmp_path):
    """A true failure of the operating system, in a process of its own."""
    program = """
        import resource, sys, torch
        from hybridrec.embedding import EmbeddingCollection, Table
        from hybridrec.train.checkpoint import Checkpoints, Contents
        small, large = (EmbeddingCollection([Table("item", 16, rows=n)]) for n in (10, 100_000))
        checkpoints = Checkpoints(sys.argv[1])
        checkpoints.save(Contents(small), 1, wait=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        dense, state = Contents(torch.nn.Linear(1000, 1000)), Contents(small, {}, {"a": torch.zeros(1 << 20)})
        for contents in (Contents(large), dense, state):
            try:
                checkpoints.save(contents, 2, wait=True)
            except OSError as error:
                print(error)
    """
    result = run(program, tmp_path)
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert all("File too large; free some space, or keep fewer checkpoints" in line for line in lines)
    assert names(Checkpoints(tmp_path)) == ["1"]
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["step-000000001"]


def run(program: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_a_program_that_ends_without_close_has_written_its_checkpoint(tmp_path):
    program = """
        import sys, torch
        from hybridrec.train.checkpoint import Checkpoints, Contents
        Checkpoints(sys.argv[1]).save(Contents(torch.nn.Linear(300, 300)), 4)
    """
    assert run(program, tmp_path).stderr == ""
    assert names(Checkpoints(tmp_path)) == ["4"]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.2])
def test_a_killed_writer_leaves_the_older_one_as_the_latest_and_the_next_save_clears_up(delay, tmp_path):
    program = """
        import sys, torch
        from hybridrec.embedding import EmbeddingCollection, Table
        from hybridrec.train.checkpoint import Checkpoints, Contents
        emb = EmbeddingCollection([Table("item", 16, rows=1_000_000)])
        checkpoints = Checkpoints(sys.argv[1], keep=2)
        for step in range(1, 100):
            emb["item"].weight.fill_(step)
            checkpoints.save(Contents(emb), step, wait=step == 1)
            print(step, flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), tmp_path], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(3):
        child.stdout.readline()
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    checkpoints = Checkpoints(tmp_path, keep=2)
    latest = checkpoints.latest()
    assert latest is not None
    assert verify(latest) == []
    emb = EmbeddingCollection([Table("item", 16, rows=1_000_000)])
    load(latest, Contents(emb))
    assert (emb["item"].weight == read_manifest(latest).step).all(), "rows of one step only"
    checkpoints.save(Contents(emb), 500, wait=True)
    assert list(tmp_path.glob("*.part")) == []
    assert names(checkpoints)[-1] == "500"


@pytest.mark.parametrize("left", ["step-000000002.part", "step-000000001-1.part"])
def test_what_a_killed_writer_left_is_cleared_and_never_taken_for_a_checkpoint(left, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(linear(), 1, wait=True)
    shutil.copytree(tmp_path / "step-000000001", tmp_path / left)
    assert names(checkpoints) == ["1"]
    checkpoints.save(linear(), 2, wait=True)
    assert names(checkpoints) == ["1", "2"]
    assert not (tmp_path / left).exists()


def test_strangers_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "step-1.txt").write_text("mine")
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in range(3):
            checkpoints.save(linear(), step)
    assert (tmp_path / "step-notes").is_dir()
    assert (tmp_path / "step-1.txt").read_text() == "mine"
    assert names(checkpoints) == ["2"]


@pytest.mark.parametrize("how", ["cut", "gone", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_never_removed(how, tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(linear(1), 1, wait=True, best=True)
    checkpoints.save(linear(2), 2, wait=True)
    victim = tmp_path / "step-000000002" / ("manifest.json" if how == "manifest" else "dense.safetensors")
    victim.unlink() if how == "gone" else victim.write_bytes(victim.read_bytes()[:-2])
    with pytest.warns(RuntimeWarning, match=r"step-000000002 is passed over: .*; see hybridrec checkpoint verify"):
        assert value(checkpoints.latest()) == 1
    checkpoints.save(linear(3), 3, wait=True)
    with pytest.warns(RuntimeWarning, match="step-000000002"):
        assert names(checkpoints) == ["1", "3"]
    assert (tmp_path / "step-000000002").is_dir()


def test_a_newer_format_is_an_error_and_never_removed(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "VERSION", 4)
        patch.setattr(manifest_body, "VERSION", 4)
        checkpoints.save(linear(1), 1, wait=True)
    checkpoints.save(linear(2), 2, wait=True)
    checkpoints.save(linear(3), 3, wait=True)
    for ask in (checkpoints.all, checkpoints.latest, checkpoints.best):
        with pytest.raises(
            CheckpointError, match="step-000000001 has format version 4, and this hybridrec reads up to 3"
        ):
            ask()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000000001", "step-000000003"]


def test_two_processes_do_not_write_into_one_folder(tmp_path):
    program = """
        import fcntl, sys
        with open(sys.argv[1] + "/.lock", "a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            print("held", flush=True)
            sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            OSError, match=r"another process writes checkpoints to .*; give each run a folder of its own"
        ):
            Checkpoints(tmp_path).save(linear(), 1, wait=True)
        other.communicate("\n")
    Checkpoints(tmp_path).save(linear(), 1, wait=True)


def test_a_file_system_without_locks_has_none(tmp_path, monkeypatch):
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "lockf", refuse)
    Checkpoints(tmp_path).save(linear(), 1, wait=True)
    assert names(Checkpoints(tmp_path)) == ["1"]


def test_a_checkpoint_that_is_removed_while_others_look_is_not_warned_of(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(linear(), 1, wait=True)
    checkpoints.save(linear(), 2, wait=True)
    real = module.read_manifest

    def late(path: Path) -> object:
        if path.name.endswith("1"):
            shutil.rmtree(path)
        return real(path)

    monkeypatch.setattr(module, "read_manifest", late)
    assert names(checkpoints) == ["2"]


def test_two_threads_take_turns_in_one_folder(tmp_path):
    both = [Checkpoints(tmp_path, keep=9), Checkpoints(tmp_path, keep=9)]
    for step in range(4):
        for checkpoints in both:
            checkpoints.save(linear(), step)
    for checkpoints in both:
        checkpoints.close()
    assert len(both[0].all()) == 8
    assert sorted(read_manifest(path).number for path in both[0].all()) == list(range(1, 9))
