"""The rules of steps alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hybridrec.server.steps import Steps, Turn


@given(st.integers(1, 3), st.integers(0, 3), st.randoms(use_true_random=False))
def test_pushes_in_any_order_are_each_due_once_and_in_order_of_step(trainers, staleness, random):
    steps, kept, due_at = Steps(trainers, staleness), set(), []
    coming = [(trainer, step) for trainer in range(trainers) for step in range(5)]
    random.shuffle(coming)
    for push in coming:
        kept.add(push)
        while due := steps.due(kept):
            kept -= set(due)
            steps.applied(due)
            due_at.append(due)
    applied = [push for due in due_at for push in due]
    assert sorted(applied) == sorted(coming)
    assert not kept
    for trainer in range(trainers):
        assert [step for who, step in applied if who == trainer] == list(range(5))
    assert all(len(due) == (trainers if staleness == 0 else 1) for due in due_at)


@given(st.integers(0, 5), st.lists(st.integers(-1, 9), min_size=1, max_size=3), st.integers(0, 15))
def test_a_lookup_waits_for_exactly_the_pushes_that_staleness_does_not_forgive(staleness, pushed, step):
    steps = Steps(len(pushed), staleness, pushed=pushed)
    seen = all(last >= step - 1 - staleness for last in pushed)
    assert steps.may_look(step) == seen


def test_a_lookup_counts_once_and_one_of_a_step_that_was_pushed_never():
    steps = Steps(1, 1)
    assert steps.look(0, 0, 0)
    assert not steps.look(0, 0, 0)
    assert steps.look(0, 0, 1)
    assert not steps.look(0, 0, 0)
    steps.applied([(0, 0)])
    assert not steps.look(0, 0, 2)
    assert steps.look(0, 1, 0)
    assert steps.turn(0, 0) is Turn.AGAIN
    assert steps.turn(0, 1) is Turn.NOW
    assert steps.turn(0, 2) is Turn.EARLY


def test_observed_staleness_is_how_many_pushes_a_lookup_did_not_see():
    steps = Steps(1, 2)
    for step in (0, 1, 2):
        steps.look(0, step, 0)
    steps.applied([(0, 0)])
    steps.look(0, 3, 0)
    assert steps.observed == [1, 1, 2]
