"""Ranks that watch each other, through a store in memory; tests/train/test_rank_failures.py has real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from hybridrec.parallel import watch
from hybridrec.parallel.process import Process
from hybridrec.parallel.watch import RankFailure, Watch, guarded, of_connection
from tests.patience import PATIENCE, wait_for

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29614")
LATE = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete")


class Store:
    """What a TCPStore does, in memory; `lost` makes it raise."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lost = False

    def set(self, key: str, value: str) -> None:
        self._reach()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self._reach()
        return [self.values.get(key, b"") for key in keys]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self._reach()
        return self.values.setdefault(key, value.encode())

    def _reach(self) -> None:
        if self.lost:
            raise RuntimeError("Connection reset by peer")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two ranks that watch each other, quickly; what would end the process is a list of exit codes.

    Each is of a host of its own, and silence is long: a busy machine may keep any thread from its work for a while.
    """
    for name, seconds in {"BEAT": 0.01, "QUIET": PATIENCE, "GRACE": 0.1}.items():
        monkeypatch.setattr(watch, name, seconds)
    store, ended = Store(), []
    both = [Watch(rank, 2, store, PATIENCE, end=ended.append) for rank in range(2)]
    for each in both:
        each._process = Process(f"host {each.rank}", 1, "")
        each.start()
    yield *both, store, ended
    for each in both:
        each.close()


def wait_for_step(one: Watch, rank: int, step: int) -> None:
    wait_for(lambda: watch._read(one._seen[rank][0])["step"] == step)


def freeze(each: Watch) -> None:
    """Its thread stops as if the process had been killed: no more signs, and no farewell."""
    each._sign = lambda: None  # type: ignore[method-assign]
    each._over.set()
    each._thread.join()


def missed(one: Watch, rank: int, store: Store) -> None:
    """It has the last sign of a rank that is frozen, for longer than ranks may be silent."""
    wait_for(lambda: one._seen[rank][0] == store.values[f"rank/{rank}"])
    one.timeout = 4 * PATIENCE  # which is another matter
    one._seen[rank] = one._seen[rank][0], time.monotonic() - 2 * PATIENCE


def test_an_error_of_one_rank_ends_the_others_with_its_words(watched, capsys):
    one, _, _, ended = watched
    one.step = 7
    with pytest.raises(KeyError), guarded(one):
        raise KeyError("user")
    wait_for(lambda: ended)
    assert ended == [1]
    assert "rank 1: rank 0 failed at step 7: KeyError: 'user'; this rank ends too" in capsys.readouterr().err


def test_a_broken_connection_is_told_with_the_rank_whose_signs_have_stopped(watched):
    one, other, store, ended = watched
    other.step = 3
    wait_for_step(one, 1, 3)
    freeze(other)
    missed(one, 1, store)
    with (
        pytest.raises(RankFailure, match="rank 1 died or left: its connection broke, last seen at step 3"),
        guarded(one),
    ):
        raise CLOSED
    assert ended == []


def test_a_rank_whose_process_lives_is_not_taken_for_dead_however_long_it_is_silent(watched, monkeypatch):
    one, other, store, _ = watched
    other._process = Process.here()
    wait_for(lambda: watch._process(one._seen[1][0]) == Process.here())
    freeze(other)
    missed(one, 1, store)
    monkeypatch.setattr(watch, "QUIET", 0.1)
    with pytest.raises(RankFailure, match="a rank that rank 0 waited for at step 0 did not answer"), guarded(one):
        raise CLOSED


def test_a_rank_whose_process_has_ended_is_named_at_once(watched):
    one, other, _, _ = watched
    other._process = Process.here()._replace(began="another time")
    wait_for(lambda: watch._process(one._seen[1][0]) == other._process)
    with pytest.raises(RankFailure, match="rank 1 died or left: its connection broke"), guarded(one):
        raise CLOSED


def test_a_broken_connection_is_told_with_what_the_failed_rank_said(watched):
    one, other, _, _ = watched
    other.fail(ValueError("bad file"))
    with pytest.raises(RankFailure, match="rank 1 failed at step 0: ValueError: bad file"), guarded(one):
        raise CLOSED


def test_a_rank_that_has_raised_the_failure_of_another_has_time_to_close_what_it_holds(watched):
    one, other, _, ended = watched
    with pytest.raises(RankFailure), guarded(one):
        raise RankFailure("rank 1 failed at step 0: ValueError: bad file")  # as all have agreed
    other.fail(ValueError("bad file"))
    wait_for(lambda: one.failure)
    time.sleep(5 * watch.GRACE)
    assert ended == []


def test_a_rank_that_did_not_come_is_named(watched):
    one, other, _, _ = watched
    one.step = other.step = 4
    one.calls += 1
    wait_for_step(one, 1, 4)
    with pytest.raises(RankFailure, match=f"rank 1 stalled for {PATIENCE:g} s, last seen at step 4"), guarded(one):
        raise LATE


def test_a_rank_without_signs_ends_the_others_after_the_timeout(watched):
    one, other, _, ended = watched
    freeze(other)
    one.timeout = 0.3
    wait_for(lambda: ended)
    assert ended == [1]
    assert one.failure == "rank 1 stalled for 0.3 s, last seen at step 0"


def test_a_rank_that_is_done_is_not_missed(watched):
    one, other, _, ended = watched
    other.close()
    other._thread.join()
    one.timeout = 0.1
    time.sleep(0.5)
    assert one.failure is None
    assert ended == []


def test_whoever_keeps_the_store_may_leave_when_done_but_not_before(watched):
    one, other, store, _ = watched
    store.lost = True
    wait_for(lambda: other.failure)
    assert "rank 0 died or left" in other.failure
    wait_for(lambda: not one._answers())


ENDS_WHILE_ITS_WATCH_WAITS = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
from hybridrec.parallel import watch
from hybridrec.parallel.process import Process

class Slow:
    def __init__(self):
        self.store, self.asked = TCPStore("127.0.0.1", 0, 1, True), False
    def multi_get(self, keys):
        self.asked = True
        self.store.wait(["never"], timedelta(seconds=0.4))
    def set(self, key, value):
        self.store.set(key, value)

watch.BEAT = 0.01
store = Slow()
made = watch.Watch(1, 2, store, 60.0)
made.start()
while not store.asked:
    pass
if sys.argv[1] == "closed":
    made.close()
"""


@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_program_may_end_while_its_watch_waits_for_the_store(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_WHILE_ITS_WATCH_WAITS, how], capture_output=True, text=True)
    assert "terminate called" not in done.stderr
    assert done.returncode in (0, 1)  # 1 where it says that rank 0 cannot be reached


def test_errors_of_connections_are_known_by_their_words():
    assert of_connection(CLOSED)
    assert of_connection(LATE)
    assert not of_connection(RuntimeError("expected scalar type Float but found Double"))
    assert not of_connection(ValueError("gloo"))
