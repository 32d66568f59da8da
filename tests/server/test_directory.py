"""Rows on disk: a server that was killed goes on where it was, and every push counts once."""

from __future__ import annotations

import json
import signal
import threading

import numpy as np
import pytest

from hybridrec.server.client import Servers, Session
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.shard import Shard
from tests.patience import wait_for
from tests.server.counting import NUMBERS, RULE, attached, counter, look, push
from tests.server.processes import ServerProcess

IDS = list(range(40))


def counts(shard: Shard, ids: list[int], table: str = "count") -> list[float]:
    return shard.tables[table].read(np.array(ids)).rows[:, 0].tolist()


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_session_goes_on_with_the_rows_and_steps_of_the_life_before(tmp_path, staleness):
    before = Shard(path=tmp_path)
    trainers = [attached(Servers.direct([before]), 7, each, 2, staleness) for each in (0, 1)]
    for step in range(3):
        for each in trainers:
            look(each, step, IDS)
        for each in trainers:
            push(each, step, IDS)
    clock = before.tables["count"].native.clock
    before.close()
    after = Shard(path=tmp_path)
    assert after.kept
    assert after.session == 7
    [first, second] = [attached_again(after, 7, each, 2, staleness) for each in (0, 1)]
    assert push(first, 2, IDS).result().again
    assert push(second, 2, IDS).result().again
    assert look(first, 3, IDS) == look(second, 3, IDS) == [6] * 40
    push(first, 3, IDS)
    push(second, 3, IDS)
    assert look(first, 4, IDS) == [8] * 40
    assert after.tables["count"].native.clock == clock + 1 + (staleness > 0)


def attached_again(shard: Shard, session: int, trainer: int, trainers: int, staleness: int) -> Session:
    """A trainer that reconnects: it says no more than what it attached."""
    made = Session(Servers.direct([shard]), session, trainer, trainers, staleness=staleness)
    made.attach(0, [counter()])
    return made


def test_a_fixed_table_goes_on_with_the_rows_that_were_used(tmp_path):
    fixed = counter(capacity=50, eviction="none", rows=50)
    for life in range(3):
        shard = Shard(path=tmp_path)
        session = Session(Servers.direct([shard]), 7)
        session.attach(0, [fixed])
        if life == 0:
            session.change(0, Kind.RULE, "count", {"rule": RULE}).result()
        look(session, life, IDS[:10])
        assert not push(session, life, IDS[:10]).result().again
        assert counts(shard, list(range(50))) == [life + 1] * 10 + [0] * 40
        assert shard.tables["count"].ids().tolist() == IDS[:10]
        shard.close()


def test_a_directory_from_before_there_were_fixed_tables_is_opened(tmp_path):
    before = Shard(path=tmp_path)
    session = attached(Servers.direct([before]), 7)
    look(session, 0, IDS)
    before.close()
    written = json.loads((tmp_path / "server.json").read_text())
    del written["tables"][0]["rows"]
    (tmp_path / "server.json").write_text(json.dumps(written))
    assert Shard(path=tmp_path).tables["count"].ids().tolist() == IDS


def test_a_push_that_reached_some_tables_is_completed_in_the_others(tmp_path):
    tables = [counter("a"), counter("b")]

    def opened(session: int = 3) -> tuple[Shard, Session]:
        shard = Shard(path=tmp_path)
        made = Session(Servers.direct([shard]), session)
        made.attach(0, tables)
        return shard, made

    shard, session = opened()
    for name in ("a", "b"):
        session.change(0, Kind.RULE, name, {"rule": RULE}).result()
    two, ones = np.array([1, 1]), np.ones(4, np.float32)
    session.lookup(0, 0, 0, [0, 1], two, two, train=True).result()
    session.push(0, 0, 0, [0, 1], two, two, ones, np.repeat(NUMBERS, 2, axis=0)).result()
    group = shard.groups[0].rows  # the next push reaches table a alone
    from hybridrec.server.row_group import Asked, Gradients, RowGroup, Tag

    half = RowGroup(group.rows[:1])
    half.update([Gradients(Asked(np.array([0]), np.array([1]), np.array([1])), ones[:2], NUMBERS)], Tag(0, 3, 1))
    shard.close()
    del group, half
    shard, session = opened()
    assert shard.groups[0].steps.pushed == [0]
    done = session.push(0, 0, 1, [0, 1], two, two, ones, np.repeat(NUMBERS, 2, axis=0)).result()
    assert not done.again
    assert counts(shard, [1], "a") == counts(shard, [1], "b") == [2]


def test_a_table_that_gets_its_optimizer_late_is_as_far_as_the_others(tmp_path):
    def opened() -> tuple[Shard, Session]:
        shard = Shard(path=tmp_path)
        made = Session(Servers.direct([shard]), 3)
        made.attach(0, [counter("a"), counter("b")])
        return shard, made

    shard, session = opened()
    session.change(0, Kind.RULE, "a", {"rule": RULE}).result()
    for step in range(3):
        session.push(0, 0, step, [0], [1], np.array([1]), np.ones(2, np.float32), NUMBERS).result()
    session.change(0, Kind.RULE, "b", {"rule": RULE}).result()
    assert shard.groups[0].rows.clocks == [3, 3]
    shard.close()
    shard, session = opened()
    assert shard.groups[0].steps.pushed == [2]
    shard.close()


def test_a_request_that_comes_too_late_does_not_open_the_tables_again(tmp_path):
    before, answers = Shard(path=tmp_path), []
    attached(Servers.direct([before]), 5)
    before.close()
    fields = {"session": 6, "group": 0, "trainer": 0, "trainers": 1, "staleness": 0}
    wires = {"wire": "float32", "gradient_wire": "float32", "tables": [counter().to_json()]}
    before.handle(Message(Kind.ATTACH, fields | wires), answers.append)
    assert answers == []
    assert Shard(path=tmp_path).kept


def test_an_older_session_is_refused_after_a_restart_too(tmp_path):
    before = Shard(path=tmp_path)
    attached(Servers.direct([before]), 5)
    before.close()
    with pytest.raises(RuntimeError, match="serves session 5, this message is of session 4"):
        attached(Servers.direct([Shard(path=tmp_path)]), 4)


def test_another_optimizer_than_the_one_on_disk_is_refused_by_both(tmp_path):
    shard = Shard(path=tmp_path)
    session = attached(Servers.direct([shard]), 1)
    look(session, 0, IDS)
    session = Session(Servers.direct([shard]), 2)
    session.attach(0, [counter()])
    rule = {"kind": "adagrad", "state": [["sum", False, 0.0]]}
    with pytest.raises(ValueError, match=r"keeps state for .*'sgd'.*the trainer's optimizer is .*'adagrad'"):
        session.change(0, Kind.RULE, "count", {"rule": rule}).result()


def test_a_directory_of_another_server_is_refused(tmp_path):
    Shard(0, 2, tmp_path)
    with pytest.raises(ValueError, match="has the rows of a server with number 0, this one has number 1"):
        Shard(1, 2, tmp_path)
    with pytest.raises(ValueError, match="has the rows of a server with count 2, this one has count 3"):
        Shard(0, 3, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"tables": [{"name": 3}]}'])
def test_a_damaged_file_is_refused_by_name(tmp_path, text):
    Shard(path=tmp_path)
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(ValueError, match=r"server.json is damaged: .*give --path another directory"):
        Shard(path=tmp_path)


def test_a_format_of_the_future_is_refused(tmp_path):
    Shard(path=tmp_path)
    file = tmp_path / "server.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    with pytest.raises(ValueError, match="with format 2, this one has format 1"):
        Shard(path=tmp_path)


def test_a_server_that_is_killed_while_it_trains_loses_and_doubles_nothing(tmp_path):
    server = ServerProcess("--path", str(tmp_path))
    port, step = server.port, 0

    def kill() -> None:
        nonlocal server
        wait_for(lambda: step > 2)
        server.end(signal.SIGKILL)
        server = ServerProcess("--path", str(tmp_path), port=port)

    killer = threading.Thread(target=kill, daemon=True)
    with Servers.connect([server.address]) as servers:
        session = attached(servers)
        killer.start()
        while killer.is_alive() or step < 40:
            assert look(session, step, IDS) == [step] * len(IDS)
            push(session, step, IDS)
            step += 1
        assert look(session, step, IDS) == [step] * len(IDS)
    assert server.end() == 0
