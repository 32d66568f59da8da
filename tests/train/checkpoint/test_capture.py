"""What is captured: rows in the order of their store, whichever that is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Snapshot, Table
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.train.checkpoint import CheckpointError, Checkpoints, Contents, load, open_table
from hybridrec.train.checkpoint.capture import capture, file_name


def shuffled(snapshot: Snapshot, keep: int) -> Snapshot:
    """Some of the rows, from the last to the first."""
    data = snapshot.data
    order = torch.arange(len(data.ids) - 1, -1, -1)[:keep]
    state = {name: part[order] for name, part in data.state.items()}
    touched = None if data.touched is None else data.touched[order]
    return Snapshot(data._replace(ids=data.ids[order], rows=data.rows[order], state=state, touched=touched), 5, None)


@pytest.mark.parametrize(("kind", "size"), [(HashStore, {"capacity": 50}), (DenseStore, {"rows": 20})])
def test_rows_are_written_and_restored_in_the_order_of_the_snapshot(kind, size, tmp_path, monkeypatch):
    emb = EmbeddingCollection([Table("item", 2, **size)])
    with torch.no_grad():
        emb({"item": torch.arange(20)})
    wanted = shuffled(emb["item"].snapshot(), keep=15)
    monkeypatch.setattr(kind, "snapshot", lambda self: wanted)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(Contents(emb), 1)
    path = checkpoints.latest()
    assert path is not None
    assert open_table(path / "tables" / "item.arrow")["id"].to_pylist() == list(range(19, 4, -1))
    given = []
    monkeypatch.setattr(kind, "restore", lambda self, snapshot: given.append(snapshot))
    load(path, Contents(emb))
    assert torch.equal(given[0].data.ids, wanted.data.ids)
    assert torch.equal(given[0].data.rows, wanted.data.rows)
    assert given[0].clock == 5


def test_dense_weights_are_copied_to_contiguous_memory_of_their_own():
    model = nn.Linear(2, 3)
    model.weight.data = torch.arange(6.0).view(2, 3).t()
    captured = capture(Contents(model))
    model.weight.data.zero_()
    assert captured.dense["weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert captured.dense["weight"].is_contiguous()
    assert captured.bytes == 6 * 4 + 3 * 4


def test_names_of_files_differ_where_tables_do():
    names = ["a/b", "a%2Fb", "a b", "A", "ü", "x" * 300, "x" * 301, ".", ".."]
    files = [file_name(name) for name in names]
    assert len(set(files)) == len(names)
    assert all("/" not in file and len(file.encode()) < 255 for file in files)


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
