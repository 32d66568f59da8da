"""A server for inference: it answers from a checkpoint, gives zeros for what is not there, and learns nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hybridrec as hr
from hybridrec.server.client import Servers, Session
from hybridrec.server.protocol import Kind
from hybridrec.server.saved_rows import saved_tables
from hybridrec.server.shard import Shard
from hybridrec.train.checkpoint import Checkpoints, Contents
from tests.server.counting import counter
from tests.server.processes import ServerProcess

IDS = torch.tensor([3, -9, 2**50, 7])


def saved(folder: Path) -> tuple[hr.EmbeddingCollection, Path]:
    """A collection that was trained a little, and its checkpoint."""
    user = hr.Table("user", dim=4, capacity=100)
    half = hr.Table("half", dim=2, capacity=100, dtype=torch.bfloat16)
    emb = hr.EmbeddingCollection([user, half, hr.Table("item", dim=3, rows=10)])
    rows = hr.optim.Adagrad(emb, lr=0.1)
    emb({"user": IDS, "half": IDS, "item": torch.arange(4)}).flat.sum().backward()
    rows.step()
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(Contents(emb, {"rows": rows}, {}), 1)
    return emb.eval(), checkpoints.latest()


def found(servers: Servers, table: str, dim: int, ids: torch.Tensor) -> list[np.ndarray]:
    buffers = [np.array([[0, len(ids)]]), ids.numpy()]
    answers = servers.ask_all(Kind.FIND, {"tables": [table]}, buffers)
    return [answer.array(0, "<f4", -1, dim) for answer in answers]


@pytest.mark.parametrize("count", [1, 3])
def test_servers_answer_with_the_rows_of_a_checkpoint(tmp_path, count):
    emb, checkpoint = saved(tmp_path)
    servers = Servers.direct([Shard(each, count, saved=saved_tables(checkpoint, each, count)) for each in range(count)])
    for table, dim, ids in (("user", 4, IDS), ("half", 2, IDS), ("item", 3, torch.arange(12))):
        answers = np.stack(found(servers, table, dim, ids))
        wanted = np.zeros((len(ids), dim), np.float32)
        known = ids < 10 if table == "item" else ids == ids
        wanted[known.numpy()] = emb.lookup(table, ids[known]).float().numpy()
        assert answers.sum(axis=0).tolist() == wanted.tolist()
        assert ((answers != 0).any(axis=2).sum(axis=0) <= 1).all()  # one server has each row


def test_a_server_that_reads_takes_no_training(tmp_path):
    _, checkpoint = saved(tmp_path)
    with pytest.raises(ValueError, match="holds a checkpoint to read from, so it cannot attach"):
        Session(Servers.direct([Shard(saved=saved_tables(checkpoint, 0, 1))]), 1).attach(0, [counter()])


def test_a_damaged_checkpoint_is_refused(tmp_path):
    _, checkpoint = saved(tmp_path)
    [file] = (checkpoint / "tables").glob("user*") if (checkpoint / "tables").is_dir() else checkpoint.rglob("user*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"user.* are not those that were written"):
        saved_tables(checkpoint, 0, 1)


def test_a_process_answers_from_a_checkpoint_without_torch(tmp_path):
    emb, checkpoint = saved(tmp_path)
    with ServerProcess("--read-only", str(checkpoint)) as server, Servers.connect([server.address]) as servers:
        assert found(servers, "user", 4, IDS)[0].tolist() == emb.lookup("user", IDS).tolist()
        assert "torch" not in Path(f"/proc/{server.process.pid}/maps").read_text()
