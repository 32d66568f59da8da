"""One table over messages: rows, state, scores, captures, and that what changes it is done once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hybridrec as hr
from hybridrec.embedding.hash_store import HashStore
from hybridrec.optim.rule import RowRule, StateColumn
from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Column, Declaration, Rule
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.row_messages import packed
from hybridrec.server.rows import RowArrays
from hybridrec.server.shard import Shard
from tests.server.counting import attached, look, push

ADAGRAD = Rule("adagrad", (Column("sum", False, 0.5),))
DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


def made(dtype: str = "float32", path=None, **options) -> tuple[Shard, Session]:
    shard = Shard(path=path)
    session = Session(Servers.direct([shard]), 1)
    session.attach(0, [Declaration("user", 3, 100, 5, dtype=dtype, **options)])
    session.change(0, Kind.RULE, "user", {"rule": ADAGRAD.to_json()}).result()
    return shard, session


def some_rows(n: int, dtype: str = "float32") -> RowArrays:
    draw = np.random.default_rng(n)
    values = draw.integers(0, 2**15, (n, 3)).astype(np.uint16).view(DTYPES[dtype]) if dtype != "float32" else None
    values = draw.normal(size=(n, 3)).astype(np.float32) if values is None else values
    if dtype == "float16":
        values = np.arange(3 * n).reshape(n, 3).astype(np.float16)
    state = {"sum": draw.normal(size=(n, 3)).astype(np.float32)}
    return RowArrays(np.arange(n) * 7 - 5, values, state, np.arange(n) + 2)


def load(session: Session, data: RowArrays) -> None:
    session.change(0, Kind.LOAD, "user", *packed(data)).result()


def read(session: Session, ids: np.ndarray, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    answer = session.servers.ask(0, Kind.ROWS, {"table": "user"}, [ids]).result()
    assert answer.fields["state"] == ["sum"]
    shapes = [("<i8", -1), (DTYPES[dtype], -1, 3), ("<f4", -1, 3), ("<i8", -1)]
    return tuple(answer.array(place, *shape) for place, shape in enumerate(shapes))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_come_back_as_they_were_loaded(dtype, on_disk, tmp_path):
    _, session = made(dtype, tmp_path if on_disk else None)
    data = some_rows(6, dtype)
    load(session, data)
    for found, given in zip(read(session, data.ids, dtype), (*data[:2], data.state["sum"], data.touched), strict=True):
        assert found.tolist() == given.tolist()
    assert (
        session.servers.ask(0, Kind.IDS, {"table": "user"}).result().array(0, "<i8", -1).tolist() == data.ids.tolist()
    )


def test_rows_that_are_loaded_without_state_begin_at_its_fill():
    _, session = made()
    ids, rows = np.array([4, 5]), np.ones((2, 3), np.float32)
    load(session, RowArrays(ids, rows, {}))
    assert read(session, ids)[2].tolist() == [[0.5] * 3] * 2


def test_new_rows_have_the_values_of_a_local_table():
    _, session = made()
    ids = np.array([-3, 2**60, 17])
    answer = session.change(0, Kind.PREPARE, "user", {}, [ids]).result()
    local = HashStore(hr.Table("user", dim=3, capacity=100), 5)
    slots = local.prepare(torch.from_numpy(ids), train=True)
    assert answer.array(1, "<f4", -1, 3).tolist() == local.gather(slots)[slots.inverse].tolist()


def test_an_update_outside_of_steps_is_that_of_a_local_table():
    _, session = made()
    local = HashStore(hr.Table("user", dim=3, capacity=100), 5)
    local.attach(RowRule("adagrad", (StateColumn("sum", fill=0.5),)))
    ids, grads = np.array([1, 2]), np.arange(6, dtype=np.float32)
    slots = local.prepare(torch.from_numpy(ids), train=True)
    from hybridrec.optim.rule import RowStep

    assert local.rule is not None
    local.update(slots, torch.from_numpy(grads.reshape(2, 3)), RowStep(rule=local.rule, lr=0.1, step=1, eps=1e-8))
    session.change(0, Kind.PREPARE, "user", {}, [ids]).result()
    numbers = np.array([[0.1, 0, 0, 1e-8, 0, 0, 0, 0, 0, np.inf, np.inf, 1, 1]])
    session.change(0, Kind.UPDATE, "user", {}, [ids, grads, numbers]).result()
    assert read(session, ids)[1].tolist() == local.read(torch.from_numpy(ids)).rows.tolist()


def test_erased_and_cleared_rows_are_gone():
    shard, session = made()
    load(session, some_rows(4))
    session.change(0, Kind.ERASE, "user", {}, [np.array([-5, 999])]).result()
    assert shard.tables["user"].ids().tolist() == [2, 9, 16]
    session.change(0, Kind.CLEAR, "user").result()
    assert len(shard.tables["user"]) == 0


def test_a_row_that_is_not_there_is_named():
    _, session = made()
    with pytest.raises(ValueError, match="table 'user' has no row for id 77"):
        session.servers.ask(0, Kind.ROWS, {"table": "user"}, [np.array([77])]).result()
    with pytest.raises(ValueError, match="has no table 'usr'; it has user"):
        session.servers.ask(0, Kind.IDS, {"table": "usr"}).result()


def test_a_change_that_is_sent_again_is_done_once():
    shard, session = made()
    fields = {"session": 1, "by": 0, "once": 100, "table": "user"}
    for _ in range(2):
        session.servers.ask(0, Kind.PREPARE, fields, [np.array([1])]).result()
    assert shard.tables["user"].counters()["misses"] == 1


def test_what_all_trainers_do_together_is_done_for_the_first():
    shard = Shard()
    trainers = [Session(Servers.direct([shard]), 1, trainer, 3) for trainer in range(3)]
    for each in trainers:
        each.attach(0, [Declaration("user", 3, 100)])
    for number, each in enumerate(trainers):
        each.change(0, Kind.CLEAR, "user", together=True).result()
        if number == 0:
            load(each, RowArrays(np.array([1]), np.ones((1, 3), np.float32), {}))
    assert len(shard.tables["user"]) == 1


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_capture_holds_the_moment_and_refills_another_server(on_disk, tmp_path):
    shard, session = made(min_count=2, path=tmp_path if on_disk else None)
    load(session, some_rows(50))
    session.change(0, Kind.PREPARE, "user", {}, [np.array([1000])]).result()  # counted, not yet let in
    ask = session.servers.ask
    opened = ask(0, Kind.CAPTURE, {"table": "user"}).result()
    session.change(0, Kind.CLEAR, "user").result()
    other = Shard()
    new = Session(Servers.direct([other]), 1)
    new.attach(0, [Declaration("user", 3, 100, 5, min_count=2)])
    refill = {name: opened.fields[name] for name in ("rule", "clock", "most", "sketch")}
    new.change(0, Kind.REFILL, "user", refill, opened.buffers).result()
    for part, first in enumerate(range(0, opened.fields["most"], 20)):
        for _ in range(2):  # the last chunk may be asked for again
            chunk = ask(0, Kind.CHUNK, {"capture": opened.fields["capture"], "first": first, "size": 20}).result()
        new.change(0, Kind.APPEND, "user", {"part": part, **chunk.fields}, chunk.buffers).result()
    new.change(0, Kind.FILLED, "user").result()
    ask(0, Kind.CLOSE, {"capture": opened.fields["capture"]}).result()
    data = some_rows(50)
    for found, given in zip(read(new, data.ids), (*data[:2], data.state["sum"], data.touched), strict=True):
        assert found.tolist() == given.tolist()
    new.change(0, Kind.PREPARE, "user", {}, [np.array([1000])]).result()
    assert 1000 in other.tables["user"].ids()
    assert len(shard.tables["user"]) == 0


def test_chunks_are_read_in_order_and_parts_appended_in_order():
    _, session = made()
    opened = session.servers.ask(0, Kind.CAPTURE, {"table": "user"}).result()
    with pytest.raises(ValueError, match="a capture is read in order: slot 0 comes next, not 40"):
        session.servers.ask(0, Kind.CHUNK, {"capture": opened.fields["capture"], "first": 40, "size": 20}).result()
    with pytest.raises(ValueError, match="there is no capture 99"):
        session.servers.ask(0, Kind.CHUNK, {"capture": 99, "first": 0, "size": 20}).result()
    fields, buffers = packed(some_rows(2))
    with pytest.raises(ValueError, match="is given part 0, but part -1 comes next"):
        session.change(0, Kind.APPEND, "user", {"part": 0, **fields}, buffers).result()


def test_more_rows_than_fit_are_refused_before_anything_goes():
    shard, session = made()
    load(session, some_rows(3))
    refill = {"rule": None, "clock": 0, "most": 101, "sketch": False}
    with pytest.raises(ValueError, match="holds 100 rows on this server, and 101 are to be restored"):
        session.change(0, Kind.REFILL, "user", refill).result()
    assert len(shard.tables["user"]) == 3


def test_an_id_that_is_appended_twice_is_refused_and_leaves_nothing():
    shard, session = made()
    session.change(0, Kind.REFILL, "user", {"rule": None, "clock": 0, "most": 4, "sketch": False}).result()
    rows = np.zeros((2, 3), np.float32)
    fields, buffers = packed(RowArrays(np.array([1, 1]), rows, {}, np.array([0, 0])))
    with pytest.raises(ValueError, match="id 1 is there twice"):
        session.change(0, Kind.APPEND, "user", {"part": 0, **fields}, buffers).result()
    assert len(shard.tables["user"]) == 0


def test_figures_tell_what_a_server_did():
    shard = Shard()
    session = attached(Servers.direct([shard]), staleness=1)
    for step in range(3):
        look(session, step, [1, 2])
        push(session, step, [1, 2])
    found = session.servers.ask_all(Kind.STATS)[0].fields
    assert (found["lookups"], found["pushes"], found["ids_looked_up"], found["staleness"]) == (3, 3, 6, [3, 0])
    assert found["tables"]["count"]["rows"] == 2
    assert found["tables"]["count"]["hits"] == 4


def test_anybody_may_find_vectors_by_names():
    shard, session = made()
    load(session, some_rows(2))
    answers: list[Message] = []
    buffers = [np.array([[0, 3]]), np.array([2, -5, 99])]
    shard.handle(Message(Kind.FIND, {"tables": ["user"]}, buffers), answers.append)
    given = some_rows(2).rows
    assert answers[0].array(0, "<f4", 3, 3).tolist() == [given[1].tolist(), given[0].tolist(), [0.0] * 3]
