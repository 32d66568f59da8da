"""Cases in which the servers of another library went wrong. PERSIA's open code is the other library."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Column, Rule
from hybridrec.server.errors import ServerLost
from hybridrec.server.listener import Listener
from hybridrec.server.protocol import Kind
from hybridrec.server.shard import Shard
from tests.patience import PATIENCE, wait_for
from tests.server.counting import NUMBERS, RULE, attached, counter, look, push
from tests.server.processes import Relay

IDS = list(range(40))


def drawn(table: dict) -> Session:
    """One trainer of a table that does not let every id in, or does not keep it."""
    session = Session(Servers.direct([Shard()]), 1)
    session.attach(0, [counter(**table)])
    session.change(0, Kind.RULE, "count", {"rule": RULE}).result()
    return session


@pytest.mark.parametrize("table", [{"probability": 0.5}, {"capacity": 200, "eviction": "lru"}, {"min_count": 2}])
def test_a_gradient_for_an_id_that_is_gone_does_not_move_the_gradients_after_it(table: dict):
    """There, the place in the message is not moved on for such an id, and all ids after it get another's gradient."""
    session, generator = drawn(table), np.random.default_rng(0)
    added: dict[int, float] = {}
    missed = 0
    for step in range(40):
        ids = generator.choice(1000, 60, replace=False)
        before = set(session.servers.ask(0, Kind.IDS, {"table": "count"}).result().array(0, "<i8", -1).tolist())
        session.lookup(0, 0, step, [0], [60], ids, train=True).result()
        there = session.servers.ask(0, Kind.IDS, {"table": "count"}).result().array(0, "<i8", -1)
        for gone in before - set(there.tolist()):
            added.pop(gone, None)
        gradients = np.repeat(1.0 + ids.astype(np.float32), 2)  # each id has its own
        done = session.push(0, 0, step, [0], [60], ids, gradients, NUMBERS).result()
        missed += int(done.gone[0])
        for each in set(ids.tolist()) & set(there.tolist()):
            added[each] = added.get(each, 0) + 1 + each
    left = np.array(sorted(added))
    left = np.intersect1d(left, session.servers.ask(0, Kind.IDS, {"table": "count"}).result().array(0, "<i8", -1))
    rows = session.servers.ask(0, Kind.ROWS, {"table": "count"}, [left]).result().array(1, "<f4", -1, 2)
    assert len(left) > 100
    assert missed > 0 or "eviction" in table
    assert rows[:, 0].tolist() == [added[each] for each in left.tolist()]


def test_failed_lookups_and_pushes_are_sent_again_and_no_batch_is_dropped():
    """There, a lookup that fails drops its batch, and a push that fails drops its gradients."""
    with Listener(Shard(), "127.0.0.1", 0) as listener, Relay(f"127.0.0.1:{listener.port}") as relay:
        with Servers.connect([relay.address]) as servers:
            session = attached(servers, staleness=2)
            for step in range(40):
                threading.Timer(0.0005 * (step % 7), relay.cut).start()
                look(session, step, IDS)
                push(session, step, IDS)
            session.drain()
        rows = listener.shard.tables["count"].read(np.array(IDS)).rows
    assert rows[:, 0].tolist() == [40] * len(IDS)


def test_a_step_that_cannot_be_done_fails_and_is_not_passed_over():
    """There, training goes on with the next batch."""
    with Listener(Shard(), "127.0.0.1", 0) as listener:
        servers = Servers.connect([f"127.0.0.1:{listener.port}"])
        session = attached(servers)
        look(session, 0, IDS)
        push(session, 0, IDS).result()
    servers.deadline = 0.3
    with pytest.raises(ServerLost, match="the lookup of step 1 was not answered"):
        look(session, 1, IDS)
    push(session, 1, IDS)
    with pytest.raises(ServerLost, match="the push of step 1"):
        session.drain()
    servers.close()


def test_every_step_looks_for_gradients_that_are_not_finite():
    """There, of every twenty checks that are asked for, the first of the job alone takes place."""
    session = drawn({})
    for step in range(50):
        look(session, step, IDS)
        gradients = np.ones(2 * len(IDS), np.float32)
        gradients[2 * (step % len(IDS))] = np.inf if step % 2 else np.nan
        done = session.push(0, 0, step, [0], [len(IDS)], np.array(IDS), gradients, NUMBERS).result()
        assert (done.updated.tolist(), done.not_finite.tolist()) == ([len(IDS) - 1], [1])
    assert np.isfinite(look(session, 50, IDS)).all()


def test_trainers_that_die_leave_nothing_behind():
    """There, batches whose gradients never come are kept for ever."""
    with Listener(Shard(), "127.0.0.1", 0) as listener:
        for life in range(1, 20):
            with Servers.connect([f"127.0.0.1:{listener.port}"]) as servers:
                session = attached(servers, session=life, trainers=2, staleness=3)
                for step in range(4):
                    session.lookup(0, 0, step, [0], [len(IDS)], np.array(IDS), train=True)
                for step in (1, 2, 3):  # before that of step 0, so they wait
                    session.push(0, 0, step, [0], [len(IDS)], np.array(IDS), np.ones(80, np.float32), NUMBERS)
        wait_for(lambda: listener.shard.stats()["waiting"] == 0)
        wait_for(lambda: listener.connections == 0)


def test_a_late_trainer_resets_no_optimizer_state():
    """There, whoever registers the optimizer last begins Adam anew for all."""
    shard = Shard()
    servers, adam = Servers.direct([shard]), Rule("adam", (Column("exp_avg"), Column("exp_avg_sq")))
    first, second = (Session(servers, 1, trainer, 2, staleness=1) for trainer in range(2))
    numbers = np.array([[0.1, 0, 0, 1e-8, 0.9, 0.999, 0, 0, 0, np.inf, np.inf, 1, 1]])
    for session in (first, second):
        session.attach(0, [counter()])
        session.change(0, Kind.RULE, "count", {"rule": adam.to_json()}, together=True).result()
        if session is first:
            look(first, 0, [1])
            first.push(0, 0, 0, [0], [1], np.array([1]), np.ones(2, np.float32), numbers).result()
    state = shard.tables["count"].read(np.array([1])).state
    assert state["exp_avg"][0].tolist() == pytest.approx([0.1, 0.1])


def test_all_servers_are_waited_for_and_the_one_that_is_missing_is_named():
    """There, the first one alone is asked whether it serves, in a loop without a pause."""
    with Listener(Shard(0, 2), "127.0.0.1", 0) as first, Listener(Shard(1, 2), "127.0.0.1", 0) as second:
        there = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
    with Listener(Shard(0, 2), "127.0.0.1", first.port):
        busy = time.process_time()
        with pytest.raises(ServerLost, match=rf"server 1 \({there[1]}\): the connection was not made within 1 s"):
            Servers.connect(there, deadline=1.0)
        assert time.process_time() - busy < 0.5
        late: list[Listener] = []
        timer = threading.Timer(0.3, lambda: late.append(Listener(Shard(1, 2), "127.0.0.1", second.port)))
        timer.start()
        Servers.connect(there, deadline=PATIENCE).close()
        timer.join()
        late[0].close()


def test_observed_staleness_counts_every_lookup_and_never_wraps():
    """There, gradients that come by another way lower a number without a sign that nobody has raised."""
    shard = Shard()
    session = attached(Servers.direct([shard]), staleness=3)
    for step in range(30):
        look(session, step, IDS)
        session.change(0, Kind.UPDATE, "count", {}, [np.array(IDS), np.ones(80, np.float32), NUMBERS]).result()
        push(session, step, IDS)
    observed = shard.stats()["staleness"]
    assert (len(observed), sum(observed)) == (4, 30)
    assert min(observed) >= 0
