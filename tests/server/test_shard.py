"""A shard without a network: steps in any order, sessions, declarations, and faults that cost their sender alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Declaration
from hybridrec.server.errors import Fenced
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.shard import Shard
from tests.server.counting import NUMBERS, attached, counter, look, lookup_message, push, push_message

STEPS = 4
EVERYONE = 7  # the id that all trainers push in each step


def session_of(shard: Shard, trainers: int, staleness: int) -> list[Session]:
    servers = Servers.direct([shard])
    return [attached(servers, 1, trainer, trainers, staleness) for trainer in range(trainers)]


class Sent:
    """A request that was handed to a shard, and its answers."""

    def __init__(self, shard: Shard, message: Message, owner: object = None) -> None:
        self.message, self.answers = message, []
        shard.handle(message, self.answers.append, owner)

    @property
    def count(self) -> float:
        return self.answers[0].array(0, "<f4", -1)[0]


class Schedule:
    """Trainers that send in an order drawn by a test: early, again, and as an older session."""

    def __init__(self, shard: Shard, trainers: int) -> None:
        self.shard, self.group = shard, shard.groups[0]
        self.looks = dict.fromkeys(range(trainers), 0)  # of each trainer: the step that it looks up next
        self.pushes = {trainer: list(range(STEPS)) for trainer in range(trainers)}  # not sent
        self.sent: list[tuple[Kind, int, int, Sent]] = []

    def choices(self) -> list[tuple[Kind, int, int]]:
        most = self.group.steps.most_waiting
        found = []
        for trainer, steps in self.pushes.items():
            waiting = sum(key[0] == trainer for key in self.group.pushes)
            found += [(Kind.PUSH, trainer, step) for step in steps[: most - waiting]]
            if self.looks[trainer] < STEPS and sum(each.trainer == trainer for each in self.group.lookups) < most:
                found.append((Kind.LOOKUP, trainer, self.looks[trainer]))
        return found

    def send(self, kind: Kind, trainer: int, step: int) -> None:
        if kind == Kind.PUSH and step in self.pushes[trainer]:
            self.pushes[trainer].remove(step)
        if kind == Kind.LOOKUP:
            self.looks[trainer] = max(self.looks[trainer], step + 1)
        make = push_message if kind == Kind.PUSH else lookup_message
        self.sent.append((kind, trainer, step, Sent(self.shard, make(trainer, step, [EVERYONE, 100 + trainer]))))


@given(st.integers(1, 3), st.integers(0, 3), st.data())
def test_in_any_order_every_push_counts_once_and_lookups_see_what_they_must(trainers, staleness, data):
    shard = Shard()
    session_of(shard, trainers, staleness)
    everyone = [EVERYONE, *(100 + trainer for trainer in range(trainers))]
    shard.tables["count"].admit(np.array(everyone))
    schedule = Schedule(shard, trainers)
    while choices := schedule.choices():
        schedule.send(*data.draw(st.sampled_from(choices)))
        if data.draw(st.booleans()):
            kind, trainer, step, _ = data.draw(st.sampled_from(schedule.sent))
            if kind == Kind.PUSH:
                schedule.send(kind, trainer, step)
        old = Sent(shard, push_message(0, 0, [EVERYONE], session=0))
        assert [each.fields["code"] for each in old.answers] == ["fenced"]
    final = Sent(shard, lookup_message(0, STEPS, everyone))
    assert final.answers[0].array(0, "<f4", -1, 2)[:, 0].tolist() == [trainers * STEPS, *[STEPS] * trainers]
    for kind, _, step, each in schedule.sent:
        assert len(each.answers) <= 1
        if kind == Kind.LOOKUP:
            assert trainers * max(0, step - staleness) <= each.count <= trainers * STEPS
            assert each.answers[0].kind == Kind.ANSWER


def test_without_staleness_a_lookup_sees_exactly_the_steps_before_it():
    shard = Shard()
    first, second = session_of(shard, 2, 0)
    for step in range(3):
        assert look(first, step, [EVERYONE, 1]) == [2 * step, step]
        assert look(second, step, [EVERYONE]) == [2 * step]
        early = first.lookup(0, 0, step + 1, [0], [1], np.array([EVERYONE]), train=True)
        mine = push(first, step, [EVERYONE, 1])
        assert not mine.done()
        assert not early.done()
        theirs = push(second, step, [EVERYONE])
        assert mine.result().updated.tolist() == theirs.result().updated.tolist() == [2]
        assert early.result()[0] == 2 * (step + 1)


def test_gradients_of_a_step_are_added_in_the_order_of_trainers_whatever_order_they_come_in():
    values = np.array([1e8, 1.0, -1e8], np.float32)  # in another order the sum is another
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        shard = Shard()
        trainers = session_of(shard, 3, 0)
        for each in trainers:
            look(each, 0, [5])
        for trainer in order:
            gradient = np.full(2, values[trainer])
            trainers[trainer].push(0, 0, 0, [0], [1], np.array([5]), gradient, NUMBERS)
        assert look(trainers[0], 1, [5]) == [float((values[0] + values[1]) + values[2])]


def test_with_staleness_each_push_is_applied_as_it_comes():
    shard = Shard()
    first, second = session_of(shard, 2, 2)
    assert look(first, 0, [1]) == look(second, 0, [1]) == [0]
    assert push(first, 0, [1]).done()
    assert look(second, 1, [1]) == [1]
    assert look(first, 1, [1]) == look(first, 2, [1]) == [1]
    waits = first.lookup(0, 0, 3, [0], [1], np.array([1]), train=True)
    assert not waits.done()
    push(second, 0, [1])
    assert waits.result()[0] == 2


def test_a_push_with_a_gap_waits_and_is_never_passed_over():
    shard = Shard()
    [only] = session_of(shard, 1, 1)
    look(only, 0, [1])
    late = push(only, 1, [1])
    assert not late.done()
    assert look(only, 0, [1]) == [0]
    push(only, 0, [1])
    assert late.done()
    assert look(only, 2, [1]) == [2]


def test_a_push_that_is_sent_again_while_the_first_waits_counts_once():
    shard = Shard()
    session_of(shard, 2, 0)
    for trainer in (0, 1):
        Sent(shard, lookup_message(trainer, 0, [1]))
    cut, whole = Sent(shard, push_message(0, 0, [1]), owner="a"), Sent(shard, push_message(0, 0, [1]), owner="b")
    Sent(shard, push_message(1, 0, [1]))
    again = Sent(shard, push_message(0, 0, [1]))
    assert not cut.answers
    assert not whole.answers[0].fields["again"]
    assert again.answers[0].fields["again"]
    assert Sent(shard, lookup_message(0, 1, [1])).count == 2


def test_what_a_connection_left_waiting_is_forgotten_with_it():
    shard = Shard()
    session_of(shard, 2, 0)
    gone = Sent(shard, lookup_message(0, 1, [1]), owner="a")
    Sent(shard, push_message(0, 0, [1]), owner="a")
    shard.forget("a")
    assert not shard.groups[0].lookups
    assert not shard.groups[0].pushes
    for trainer in (0, 1):
        Sent(shard, lookup_message(trainer, 0, [1]))
        Sent(shard, push_message(trainer, 0, [1]))
    assert not gone.answers
    assert Sent(shard, lookup_message(0, 1, [1])).count == 2


@pytest.mark.parametrize("staleness", [0, 3])
def test_only_so_many_requests_of_a_trainer_may_wait(staleness):
    shard = Shard()
    session_of(shard, 2, staleness)
    codes = []
    for step in range(staleness + 1, 2 * staleness + 5):
        codes.append([each.fields.get("code") for each in Sent(shard, lookup_message(0, step, [1])).answers])
        codes.append([each.fields.get("code") for each in Sent(shard, push_message(0, step, [1])).answers])
    assert codes == [[]] * (2 * (staleness + 2)) + [["busy"]] * 4
    assert len(shard.groups[0].lookups) == len(shard.groups[0].pushes) == staleness + 2


def test_a_newer_session_ends_the_older_one_and_keeps_the_rows():
    shard = Shard()
    servers = Servers.direct([shard])
    old = attached(servers, 4, trainers=2)
    look(old, 0, [1])
    waits = push(old, 0, [1])
    new = attached(servers, 5)
    with pytest.raises(Fenced, match="serves session 5, this message is of session 4"):
        waits.result()
    with pytest.raises(Fenced, match="another start of the job"):
        attached(servers, 4)
    assert look(new, 0, [1]) == [0]
    push(new, 0, [1])
    newest = attached(servers, 6)
    assert look(newest, 0, [1]) == [1]


def test_lookups_that_read_see_what_is_there_and_change_nothing():
    shard = Shard()
    [only] = session_of(shard, 1, 0)
    look(only, 0, [1])
    push(only, 0, [1])
    assert look(only, 9, [1, 2], train=False) == [1, 0]
    assert len(shard.tables["count"]) == 1


def test_a_repeated_lookup_is_not_counted_again():
    shard = Shard()
    session = Session(Servers.direct([shard]), 1, staleness=1)
    session.attach(0, [Declaration("count", 2, 100, init="constant", scale=0.0, eviction="lfu", min_count=2)])
    for _ in range(3):
        look(session, 0, [1, 1, 2])
    counters = shard.tables["count"].counters()
    assert (counters["inserted"], counters["refused"]) == (1, 1)


def test_clocks_are_those_of_a_local_table():
    shard = Shard()
    [only] = session_of(shard, 1, 0)
    for step in range(3):
        look(only, step, [step])
        assert shard.tables["count"].native.clock == step
        push(only, step, [step])
        assert shard.tables["count"].native.clock == step + 1


def test_a_clock_that_was_set_is_where_the_next_step_begins():
    shard = Shard()
    [only] = session_of(shard, 1, 0)
    only.change(0, Kind.CLOCK, "count", {"clock": 50}).result()
    look(only, 0, [1])
    push(only, 0, [1])
    assert shard.tables["count"].native.clock == 51


CHANGED = {
    "dim": 3,
    "capacity": 99,
    "seed": 7,
    "dtype": "bfloat16",
    "init": "normal",
    "eviction": "ttl",
    "min_count": 3,
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_table_that_is_declared_otherwise_is_refused_by_both_values(key):
    servers = Servers.direct([Shard()])
    attached(servers)
    wanted = (
        counter(**{key: CHANGED[key]}) if key != "init" else Declaration("count", 2, 10_000, init="normal", scale=0.0)
    )
    mine = getattr(counter(), key)
    with pytest.raises(ValueError, match=f"table 'count': server 0 of 1 has {key} {mine!r}, the trainer declares "):
        Session(servers, 2).attach(0, [wanted])
    assert look(attached(servers, 2), 0, [1]) == [0]  # which the refusal did not begin


def test_trainers_of_a_session_must_agree():
    servers = Servers.direct([Shard()])
    attached(servers, 1, 0, 2, staleness=1)
    with pytest.raises(ValueError, match="staleness is 4 for this trainer and 1 for one before it"):
        attached(servers, 1, 1, 2, staleness=4)
    with pytest.raises(ValueError, match="trainers is 3 for this trainer and 2"):
        attached(servers, 1, 1, 3, staleness=1)


def test_a_late_trainer_that_attaches_the_optimizer_resets_nothing():
    shard = Shard()
    adagrad = {"rule": {"kind": "adagrad", "state": [["sum", False, 0.0]]}}
    first, second = (Session(Servers.direct([shard]), 1, trainer, 2, staleness=1) for trainer in (0, 1))
    for each in (first, second):
        each.attach(0, [counter()])
    first.change(0, Kind.RULE, "count", adagrad, together=True).result()
    look(first, 0, [1])
    push(first, 0, [1])
    second.change(0, Kind.RULE, "count", adagrad, together=True).result()
    assert shard.tables["count"].read(np.array([1])).state["sum"].tolist() == [[1.0, 1.0]]


def test_ids_without_a_row_are_passed_over_and_others_get_their_own_gradient():
    shard = Shard()
    [only] = session_of(shard, 1, 0)
    look(only, 0, [1, 3])
    gradient = np.repeat(np.array([10, 20, 30], np.float32), 2)
    done = only.push(0, 0, 0, [0], [3], np.array([1, 2, 3]), gradient, NUMBERS).result()
    assert (done.updated.tolist(), done.gone.tolist()) == ([2], [1])
    assert look(only, 1, [1, 2, 3]) == [10, 0, 30]


def test_rows_whose_gradient_is_not_finite_are_left_out_and_counted():
    shard = Shard()
    [only] = session_of(shard, 1, 0)
    look(only, 0, [1, 2])
    done = only.push(0, 0, 0, [0], [2], np.array([1, 2]), np.array([np.nan, 1, 1, 1], np.float32), NUMBERS).result()
    assert (done.updated.tolist(), done.not_finite.tolist()) == ([1], [1])
    assert look(only, 1, [1, 2]) == [0, 1]
    assert shard.tables["count"].counters()["nan_rows"] == 1


def test_a_table_that_is_too_small_for_a_lookup_fails_it_and_nothing_else():
    shard = Shard()
    session = Session(Servers.direct([shard]), 1)
    session.attach(0, [counter(capacity=3)])
    with pytest.raises(ValueError, match=r"table 'count' .*give it a larger capacity"):
        look(session, 0, [1, 2, 3, 4])
    assert look(session, 0, [1], train=False) == [0]


def test_a_server_adds_no_rows_beyond_its_memory():
    session = Session(Servers.direct([Shard(memory_limit=1)]), 1)
    session.attach(0, [counter()])
    with pytest.raises(RuntimeError, match=r"bytes in memory, more than its limit of 1; raise --memory-limit"):
        look(session, 0, [1])
    assert look(session, 0, [1], train=False) == [0]


def test_a_push_without_an_optimizer_is_refused():
    session = Session(Servers.direct([Shard()]), 1)
    session.attach(0, [counter()])
    with pytest.raises(ValueError, match="table 'count' has no optimizer on this server"):
        push(session, 0, [1]).result()


def test_vectors_travel_in_the_types_that_were_chosen():
    shard = Shard()
    session = Session(Servers.direct([shard]), 1, wire="bfloat16", gradient_wire="float16")
    session.attach(0, [counter()])
    session.change(0, Kind.RULE, "count", {"rule": {"kind": "sgd", "state": []}}).result()
    look(session, 0, [1])
    session.push(0, 0, 0, [0], [1], np.array([1]), np.array([257.0, 2049.0], np.float32), NUMBERS)
    assert session.lookup(0, 0, 1, [0], [1], np.array([1]), train=True).result().tolist() == [256.0, 2048.0]


def test_groups_have_steps_of_their_own():
    shard = Shard()
    session = attached(Servers.direct([shard]))
    session.attach(1, [counter("other")])
    look(session, 0, [1])
    push(session, 0, [1])
    assert session.lookup(0, 1, 0, [0], [1], np.array([1]), train=True).done()
    with pytest.raises(ValueError, match="table 'count' is in group 0 and cannot be in group 2 too"):
        session.attach(2, [counter()])


def test_a_server_is_one_of_as_many_as_there_are():
    with pytest.raises(ValueError, match="server 2 of 2; numbers go from 0 to 1"):
        Shard(2, 2)
