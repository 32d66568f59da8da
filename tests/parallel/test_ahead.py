"""Ids of the next batch that travel while this one is computed: the numbers stay those of one process."""

from __future__ import annotations

import pytest
import torch

from hybridrec.types import IdBlock
from tests.parallel import standard
from tests.parallel.equality import check
from tests.parallel.jobs.sharding import Hashed
from tests.parallel.pool import pool


@pytest.mark.parametrize("scheme", standard.ANY)
def test_ids_that_go_ahead_change_nothing(scheme: str) -> None:
    sizes = [[[3, 2], [1, 4]], [[2, 2]], [[3, 1]], [[5, 2]]]
    check(standard.case(2, scheme, sizes=sizes, ahead=True))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_weights_that_ranks_state_go_ahead_with_the_ids(scheme: str) -> None:
    check(standard.case(2, scheme, ahead=True, weighs=True))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_empty_batches_go_ahead_too(scheme: str) -> None:
    sizes = [[[0, 2]], [[0, 3]], [[0, 0]], [[0, 0]], [[4, 0]]]
    check(standard.case(2, scheme, sizes=sizes, ahead=True))


def test_batches_without_any_id_go_ahead_too() -> None:
    check(standard.case(2, "row", hot={}, idless=[0], ahead=True))


def test_two_collections_and_two_lookups_go_ahead_in_their_order() -> None:
    collections = [["item", "user", "wide"], ["few", "one", "hashed"]]
    check(standard.case(3, "row", collections=collections, ahead=True))
    check(standard.case(2, "table", lookups=2, collections=collections, ahead=True))


def test_the_very_same_block_may_go_ahead_again() -> None:
    found = pool(2).run("tests.parallel.jobs.sharding:repeated")
    for each in found:
        assert all(torch.equal(out, each[0]) for out in each)


@pytest.mark.parametrize("forget", [False, True])
def test_a_batch_that_was_prepared_and_not_looked_up_is_named_by_the_next_lookup(forget: bool) -> None:
    alone = Hashed()
    wanted = [alone(IdBlock.from_lists({"t0": [n, n + 1]})) for n in (2, 0, 1, 2)]
    for found in pool(2).run("tests.parallel.jobs.sharding:skipped", forget=forget):
        assert found["kind"] == ("" if forget else "RuntimeError")
        if not forget:
            assert found["text"].startswith("a batch of 2 rows (ids of t0) is looked up, but a batch of 2 rows")
            assert "call forget() on the model" in found["text"]
        assert found["kept"] == 0
        for out, expected in zip(found["outputs"], wanted, strict=True):
            torch.testing.assert_close(out, expected.detach())


def test_batches_that_are_prepared_and_never_looked_up_do_not_pile_up() -> None:
    for found in pool(2).run("tests.parallel.jobs.sharding:hoarded"):
        assert found["kind"] == "RuntimeError"
        assert "64 batches were prepared" in found["text"]
        assert "the very objects" in found["text"]


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("scheme", ["mixed", *standard.SCHEMES])
def test_latency_between_ranks_changes_nothing(scheme: str, ahead: bool) -> None:
    check(
        standard.case(3, scheme, ahead=ahead, collections=[["item", "user"], ["few", "wide", "one", "hashed"]]), 0.002
    )
