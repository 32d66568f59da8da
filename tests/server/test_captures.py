"""Captures of a server: rows as of one moment, without what lookups ahead of it have brought."""

from __future__ import annotations

import numpy as np
import pytest

from hybridrec.server.captures import Capture, Captures
from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Declaration, Rule
from hybridrec.server.protocol import Kind, Refusal
from hybridrec.server.rows import RowArrays, Rows
from hybridrec.server.shard import Shard

ADAGRAD = {"kind": "adagrad", "state": [["sum", False, 0.5]]}
NUMBERS = np.array([[0.1, 0, 0, 0, 0, 0, 0, 0, 0, np.inf, np.inf, 1, 1]])


class Trainers:
    """Trainers of a shard, with a staleness."""

    def __init__(self, shard: Shard, trainers: int, staleness: int) -> None:
        self.shard = shard
        servers = Servers.direct([shard])
        self.each = [Session(servers, 1, rank, trainers, staleness=staleness) for rank in range(trainers)]
        for session in self.each:
            session.attach(0, [Declaration("user", 2, 100)])
            session.change(0, Kind.RULE, "user", {"rule": ADAGRAD}, together=True).result()

    def look(self, rank: int, step: int, *ids: int) -> None:
        self.each[rank].lookup(0, 0, step, [0], [len(ids)], np.array(ids), train=True).result()

    def push(self, rank: int, step: int, *ids: int) -> None:
        ones = np.ones(2 * len(ids), np.float32)
        self.each[rank].push(0, 0, step, [0], [len(ids)], np.array(ids), ones, NUMBERS).result()

    def cut(self) -> tuple[int, dict[int, int]]:
        """The clock, and when each row was seen."""
        made = Capture(self.shard.tables["user"], self.shard.cut("user"))
        chunk = made.chunk(0, 100)
        return made.clock, dict(zip(chunk.ids.tolist(), chunk.touched.tolist(), strict=True))


def test_rows_that_only_later_lookups_have_seen_are_not_there_and_none_was_seen_later():
    job = Trainers(Shard(), 1, staleness=2)
    job.look(0, 0, 1, 2)
    job.look(0, 1, 2, 3)
    job.push(0, 0, 1, 2)
    job.look(0, 2, 1, 4)
    assert job.cut() == (1, {1: 0, 2: 0})
    job.push(0, 1, 2, 3)
    assert job.cut() == (2, {1: 1, 2: 1, 3: 1})
    job.push(0, 2, 1, 4)
    assert job.cut() == (3, {1: 2, 2: 1, 3: 1, 4: 2})


def test_a_row_that_another_trainer_has_updated_is_there_though_it_was_born_ahead():
    job = Trainers(Shard(), 2, staleness=1)
    job.look(0, 0, 1)
    job.look(0, 1, 5, 6)  # a step ahead of the other trainer, who comes to one of them first
    job.look(1, 0, 5)
    job.push(0, 0, 1)
    job.push(1, 0, 5)
    assert job.cut() == (1, {1: 0, 5: 0})


def test_it_is_so_when_the_server_was_started_again(tmp_path):
    job = Trainers(Shard(path=tmp_path), 1, staleness=1)
    job.look(0, 0, 1)
    job.push(0, 0, 1)
    job.look(0, 1, 2)
    job.look(0, 2, 3)
    job.shard.close()
    del job
    shard = Shard(path=tmp_path)
    Session(Servers.direct([shard]), 1, staleness=1).attach(0, [Declaration("user", 2, 100)])
    made = Capture(shard.tables["user"], shard.cut("user"))
    assert (made.clock, made.chunk(0, 100).ids.tolist()) == (1, [1])


def test_without_staleness_a_capture_is_what_there_is():
    job = Trainers(Shard(), 1, staleness=0)
    job.look(0, 0, 1, 2)
    assert job.shard.cut("user") is None
    assert job.cut() == (0, {1: 0, 2: 0})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_newborn_until_it_or_its_state_changes(dtype):
    rows = _rows(dtype)
    ids = np.array([1, 2, 3])
    drawn = rows.declaration.initial(ids)
    state = np.full((3, 2), 0.5, np.float32)
    drawn[1, 1] += 1
    state[2, 0] = 0.75
    assert rows.newborn(RowArrays(ids, drawn, {"sum": state}), Rule.of(ADAGRAD)).tolist() == [True, False, False]


def _rows(dtype: str) -> Rows:
    return Rows(Declaration("user", 2, 100, dtype=dtype), 1)


def test_chunks_come_in_order_and_the_last_one_again():
    job = Trainers(Shard(), 1, staleness=0)
    job.look(0, 0, 1, 2, 3)
    made = Capture(job.shard.tables["user"])
    assert made.chunk(0, 2).ids.tolist() == made.chunk(0, 2).ids.tolist() == [1, 2]
    with pytest.raises(Refusal, match="slot 2 comes next, not 4"):
        made.chunk(4, 2)


def test_one_that_is_closed_is_not_there():
    captures = Captures()
    number, _ = captures.open(_rows("float32"), None)
    captures.close(number)
    with pytest.raises(Refusal, match=f"there is no capture {number}"):
        captures.get(number)
