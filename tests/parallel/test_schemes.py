"""Every scheme alone: N ranks end where one process does, whatever the optimizer."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.drawn import OPTIMIZERS
from tests.parallel.equality import check

ALL = [(scheme, kind) for scheme in standard.SCHEMES for kind in OPTIMIZERS]
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("sgd", "adam")]


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [pytest.param(*pair, marks=pytest.mark.slow if pair[1] in ("momentum", "sgd") else ()) for pair in ALL],
)
def test_two_ranks_end_where_one_process_does_with_every_optimizer(scheme: str, kind: str) -> None:
    optimizer, options = OPTIMIZERS[kind]
    check(standard.case(2, scheme, optimizer=optimizer, options={**options, "weight_decay": 0.01}))


@pytest.mark.parametrize("scheme", standard.SCHEMES)
@pytest.mark.parametrize("world", [1, 3])
def test_worlds_of_one_and_three_end_where_one_process_does(scheme: str, world: int) -> None:
    check(standard.case(world, scheme, optimizer="Adagrad", options={"lr": 0.2, "eps": 1e-3}, weighted=True))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "kind"), ALL)
@pytest.mark.parametrize("world", [3, 4, 8])
def test_larger_worlds_end_where_one_process_does(scheme: str, kind: str, world: int) -> None:
    optimizer, options = OPTIMIZERS[kind]
    check(standard.case(world, scheme, optimizer=optimizer, options={**options, "weight_decay": 0.01}, learned=True))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_gradients_of_weights_reach_the_parameters_that_made_them(scheme: str) -> None:
    check(standard.case(2, scheme, learned=True))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_the_global_norm_is_that_of_one_process_and_clips_alike(scheme: str) -> None:
    found = check(standard.case(3, scheme, clip=0.05))
    assert all(step["norm"] > 0.05 for step in found[0]["steps"])


@pytest.mark.parametrize("scheme", standard.SCHEMES)
@pytest.mark.parametrize("kind", ["rowwise_adagrad", *SLOW])
def test_rows_are_clipped_by_the_norm_of_the_gradient_of_all_ranks(scheme: str, kind: str) -> None:
    optimizer, options = OPTIMIZERS[kind]
    check(standard.case(2, scheme, optimizer=optimizer, options={**options, "clip_row_norm": 0.01}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_weights_stay_within_their_bound(scheme: str) -> None:
    check(standard.case(2, scheme, options={"lr": 2.0, "weight_bound": 0.5}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_two_lookups_in_a_step_are_one_update(scheme: str) -> None:
    check(standard.case(2, scheme, lookups=2, optimizer="Adam", options={"lr": 0.05, "eps": 1e-3}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_accumulated_batches_are_one_update(scheme: str) -> None:
    sizes = [[[4, 1], [2, 3]], [[1, 1], [0, 5]], [[2, 2]]]
    check(standard.case(2, scheme, sizes=sizes, optimizer="Adagrad", options={"lr": 0.2, "eps": 1e-3}))


@pytest.mark.parametrize("scheme", standard.ANY)
def test_two_collections_are_placed_and_trained(scheme: str) -> None:
    check(standard.case(2, scheme, collections=[["item", "user", "wide"], ["few", "one", "hashed"]]))


@pytest.mark.parametrize("world", [2, 3])
def test_the_plan_that_shard_makes_by_itself_trains_alike(world: int) -> None:
    check(standard.case(world, None))
