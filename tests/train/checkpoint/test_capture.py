"""What is captured: rows in the order of their store, whichever that is."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.optim import SGD
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, load, open_table
from hybridrec.train.checkpoint import write as writing
from hybridrec.train.checkpoint.capture import capture


def test_rows_are_written_and_restored_in_the_order_in_which_they_lie_in_memory(tmp_path):
    emb, other = (EmbeddingCollection([Table("item", 2, capacity=9)]) for _ in range(2))
    with torch.no_grad():
        emb({"item": torch.tensor([9, 2, 5])})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(emb), 1)
    path = checkpoints.latest()
    assert path is not None
    assert open_table(path / "tables" / "item.arrow")["id"].to_pylist() == [9, 2, 5]
    load(path, Contents(other))
    with other["item"].capture() as now:
        assert [part.ids.tolist() for part in now.chunks()] == [[9, 2, 5]]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The rows that are written are those of the moment of save(), not those of the moment of writing."""
    emb = EmbeddingCollection([Table("item", 2, rows=200_000), Table("user", 2, capacity=100)])
    rows = SGD(emb, lr=1.0)
    free = threading.Event()
    real = writing.write_table
    monkeypatch.setattr(writing, "write_table", lambda *given: free.wait() and real(*given))
    step = {"item": torch.tensor([0, 199_999]), "user": torch.tensor([5, 6])}
    emb(step).flat.sum().backward()
    rows.step()
    then = {name: emb[name].export() for name in ("item", "user")}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(emb), 1)
        for _ in range(3):
            emb(step | {"user": torch.tensor([7, 6])}).flat.sum().backward()
            rows.step()
        free.set()
    other = EmbeddingCollection([Table("item", 2, rows=200_000), Table("user", 2, capacity=100)])
    load(checkpoints.latest(), Contents(other))  # pyright: ignore[reportArgumentType]
    for name, expected in then.items():
        assert torch.equal(other[name].export().ids, expected.ids)
        assert torch.equal(other[name].export().rows, expected.rows)


def test_dense_weights_are_copied_to_contiguous_memory_of_their_own():
    model = nn.Linear(2, 3)
    model.weight.data = torch.arange(6.0).view(2, 3).t()
    captured = capture(Contents(model))
    model.weight.data.zero_()
    assert captured.dense["weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert captured.dense["weight"].is_contiguous()
    assert captured.bytes == 6 * 4 + 3 * 4


def test_an_error_of_the_thread_does_not_keep_the_copy(tmp_path, monkeypatch):
    import gc
    import weakref

    from hybridrec.train.checkpoint import write as writing

    kept = []
    real = writing._write_all
    monkeypatch.setattr(
        writing,
        "_write_all",
        lambda part, captured, label: (kept.append(weakref.ref(captured)), real(None, None, label)),
    )
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Contents(nn.Linear(2, 2)), 1)
    assert checkpoints._thread is not None
    checkpoints._thread.join()
    gc.collect()
    assert kept[0]() is None
    with pytest.raises(AttributeError):
        checkpoints.wait()


def test_a_table_without_its_file_is_an_error(tmp_path):
    emb = EmbeddingCollection([Table("item", 2, rows=3)])
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(emb), 1)
    path = checkpoints.latest()
    assert path is not None
    (path / "tables" / "item.arrow").unlink()
    with pytest.raises(CheckpointError, match=r"tables/item.arrow: it is missing; load another checkpoint"):
        load(path, Contents(emb))
