"""The cost of a placement, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridrec.embedding.gpu import memory
from hybridrec.parallel import Cluster, Placement, Plan, Wire, cost, predict

from .cases import table, work

# A machine on which a byte takes a second of anything, and nothing else costs.
PLAIN = {"memory": 1e12, "bandwidth": 1.0, "inside": 1.0, "between": 1.0}
PLAIN |= {"latency_inside": 0.0, "latency_between": 0.0, "touch": 0.0, "calls": 0.0}
TWO = Cluster.parse("1x2xcpu", **PLAIN)
TABLE = table(rows=100, dim=8, hotness=2.0, growth=((10.0, 5.0), (20.0, 8.0)))  # 10 ids a device, 20 in all
WORK = work(TABLE, batch_size=5)


def of(scheme: str, *devices: int, columns: tuple[int, ...] = (), wire: Wire | None = None):
    return predict(Plan(2, (Placement("item", scheme, devices, columns),)), WORK, TWO, wire)


def test_a_whole_table_sends_pooled_sums():
    found = of("table", 1)
    assert found.phases["ids"] == (10 * 8, 10 * 8)
    assert found.phases["vectors and gradients"] == (5 * 8 * 8, 5 * 8 * 8)  # there and back in float32
    outputs = 2 * 4 * 5 * 8
    assert found.phases["memory"] == (outputs, outputs + 8 * (32 + 64) + 2 * outputs)  # 8 distinct rows: read, updated
    assert found.memory == (outputs, outputs + 100 * 32 + 2 * outputs)


def test_columns_send_their_ids_to_every_holder():
    found = of("column", 0, 1, columns=(4, 4))
    assert found.phases["ids"] == (10 * 8, 10 * 8)
    assert found.phases["vectors and gradients"] == (5 * 4 * 8, 5 * 4 * 8)
    assert found.memory[0] == found.memory[1] == 320 + 100 * 16 + 320


def test_rows_travel_once_for_each_distinct_id():
    found = of("row", 0, 1)
    assert found.phases["ids"] == (2.5 * 8, 2.5 * 8)  # 5 distinct of 10, half of them at home
    assert found.phases["vectors and gradients"] == (2.5 * 8 * 8, 2.5 * 8 * 8)
    assert of("row", 0, 1, wire=Wire("float16", "bfloat16")).phases["vectors and gradients"] == (2.5 * 8 * 4,) * 2


def test_a_replicated_table_sends_the_gradients_of_its_distinct_rows_to_all():
    assert of("replicated", 0, 1).phases["reduction of replicated tables"] == (5 * (32 + 8),) * 2
    tiny = work(table(rows=2, dim=8, hotness=2.0, growth=TABLE.growth), batch_size=5)
    found = predict(Plan(2, (Placement("item", "replicated", (0, 1)),)), tiny, TWO)
    assert found.phases["reduction of replicated tables"] == (2 * (32 + 8),) * 2


def test_sequences_are_not_pooled_and_frozen_tables_have_no_gradients():
    for more, share in (({"combiner": "none"}, 2), ({"trainable": False}, 0.5)):
        load = work(table(rows=100, dim=8, hotness=2.0, **more), batch_size=5)
        found = predict(Plan(2, (Placement("item", "table", (0,)),)), load, TWO)
        assert found.phases["vectors and gradients"][0] == share * 5 * 8 * 8


@pytest.mark.parametrize(
    ("scheme", "devices", "touched"),
    [
        ("table", (1,), (10 + 5, 10 + 5 + 20 + 20 + 8)),  # ids packed, vectors pooled; looked up, sorted, updated
        ("row", (0, 1), (10 + 10 + 5 + 5 + 4,) * 2),
        ("replicated", (0, 1), (10 + 10 + 5 + 10 + 8,) * 2),
        ("column", (0, 1), (2 * (10 + 5) + 20 + 20 + 8,) * 2),
    ],
)
def test_ids_and_rows_take_time_one_by_one_where_processors_do_the_work(scheme, devices, touched):
    cluster = Cluster.parse("1x2xcpu", **PLAIN | {"touch": 1.0})
    plan = Plan(2, (Placement("item", scheme, devices, (4, 4) if scheme == "column" else ()),))
    assert predict(plan, WORK, cluster).phases["ids and rows one by one"] == touched
    on_cards = predict(plan, WORK, Cluster.parse("1x2xH100"))
    assert on_cards.phases["ids and rows one by one"] == (0.0, 0.0)


def test_frozen_rows_are_only_looked_up():
    frozen = work(table(rows=100, dim=8, hotness=2.0, growth=TABLE.growth, trainable=False), batch_size=5)
    cluster = Cluster.parse("1x2xcpu", **PLAIN | {"touch": 1.0})
    for scheme, devices, touched in (("table", (1,), 15 + 20), ("row", (0, 1), 20 + 5), ("replicated", (0, 1), 20 + 5)):
        found = predict(Plan(2, (Placement("item", scheme, devices),)), frozen, cluster)
        assert found.phases["ids and rows one by one"][1] == touched


def test_one_device_talks_to_nobody():
    one = Cluster.parse("1x1xH100")
    found = predict(Plan(1, (Placement("item", "table", (0,)),)), WORK, one)
    assert {name for name, times in found.phases.items() if times[0]} == {"memory"}


def test_collectives_are_paid_once_whatever_the_number_of_tables():
    cluster = Cluster.parse("1x4xcpu", latency_inside=1.0)
    many = work(*(table(f"t{i}") for i in range(9)))
    plan = Plan(4, tuple(Placement(f"t{i}", "row", (0, 1, 2, 3)) for i in range(9)))
    assert predict(plan, many, cluster).phases["latency"] == (6.0,) * 4  # three of two hops each


def test_the_calls_of_a_step_are_paid_once_and_by_every_plan():
    cluster = Cluster.parse("1x2xcpu", calls=3.0)
    many = work(*(table(f"t{i}") for i in range(3)))
    for scheme, devices in (("row", (0, 1)), ("table", (1,)), ("replicated", (0, 1))):
        plan = Plan(2, tuple(Placement(f"t{i}", scheme, devices) for i in range(3)))
        assert predict(plan, many, cluster).phases["calls"] == (3.0, 3.0)


def test_the_slower_link_counts_between_nodes():
    near, far = Cluster.parse("1x4xH100"), Cluster.parse("4x1xH100")
    assert far.seconds_per_byte == pytest.approx(1 / far.between)
    assert near.seconds_per_byte == pytest.approx(1 / near.inside)
    assert near.seconds_per_byte < Cluster.parse("2x2xH100").seconds_per_byte < far.seconds_per_byte


def test_rows_on_hosts_take_room_and_time_there():
    cluster = Cluster.parse("1x2xH100")
    found = predict(Plan(2, (Placement("item", "table", (1,), where="host"),)), WORK, cluster)
    assert found.host_memory == (0, 100 * 32)
    assert found.phases["host link"][1] == pytest.approx(8 * 96 / cluster.host_bandwidth)


KEPT = [("device", "H100", 41), ("device", "cpu", 32), ("host", "H100", 32)]


@pytest.mark.parametrize(("where", "kind", "beside"), KEPT)
def test_a_row_of_a_dynamic_table_takes_what_its_home_keeps_beside_it(where, kind, beside):
    cluster, plan = Cluster.parse(f"1x2x{kind}"), Plan(2, (Placement("item", "row", (0, 1), where=where),))
    loads = [work(replace(TABLE, dynamic=dynamic), batch_size=5) for dynamic in (False, True)]
    fixed, dynamic = (predict(plan, load, cluster) for load in loads)
    room = [50 * beside * (where == there) for there in ("device", "host")]
    assert [dynamic.memory[0] - fixed.memory[0], dynamic.host_memory[0] - fixed.host_memory[0]] == room
    assert memory.KEPT + memory.PLACE == 32 + cost.ON_CARD


# -- tiers ---------------------------------------------------------------------------------------------------------

CARD = Cluster.parse("1x1xH100", **PLAIN, host_memory=1e12, host_bandwidth=1.0)


def test_a_table_in_tiers_takes_its_hot_rows_of_the_device_and_moves_those_that_a_step_lacks():
    load = work(table(rows=100, dim=8, hotness=2.0), batch_size=5)  # evenly used: misses are as many as rows are cold
    whole, tiered = (
        predict(Plan(1, (Placement("item", "table", (0,), cache=cache),)), load, CARD) for cache in (None, 0.25)
    )
    row, distinct = 8 * 4, load.tables[0].distinct(10)
    assert whole.memory[0] - tiered.memory[0] == 100 * row - (25 * (row + cost.SLOT) + 100 * cost.ENTRY)
    assert (whole.host_memory, tiered.host_memory) == ((0,), (75 * row,))
    assert tiered.phases["host link"][0] == pytest.approx(0.75 * distinct * row)
    moved = tiered.phases["memory"][0] - whole.phases["memory"][0]
    assert moved == pytest.approx(2 * 0.75 * distinct * row)
    assert whole.phases["host link"] == (0,)


def test_cold_rows_in_files_need_no_memory_of_the_host():
    load = work(replace(table(rows=100, dim=8, hotness=2.0), on_disk=True), batch_size=5)
    found = predict(Plan(1, (Placement("item", "table", (0,), cache=0.25),)), load, CARD)
    assert found.host_memory == (0,)
    assert found.phases["host link"][0] > 0


def test_cold_rows_of_a_smaller_type_take_less_of_the_host_and_of_its_link():
    load = work(replace(table(rows=100, dim=8, hotness=2.0), state_per_row=4, cold=12), batch_size=5)  # int8
    whole = replace(load.tables[0], cold=None)
    packed, usual = (
        predict(Plan(1, (Placement("item", "table", (0,), cache=0.25),)), given, CARD)
        for given in (load, work(whole, batch_size=5))
    )
    assert (packed.host_memory, usual.host_memory) == ((75 * 16,), (75 * 36,))
    assert packed.phases["host link"][0] == pytest.approx(16 / 36 * usual.phases["host link"][0])
    assert packed.memory == usual.memory, "hot rows are float32"
    assert packed.phases["memory"] == usual.phases["memory"]


def test_what_a_device_keeps_of_rows_in_tiers_is_what_it_allocates():
    assert (cost.ENTRY, cost.SLOT) == (memory.ENTRY, memory.SLOT)


def test_of_rows_in_tiers_on_several_devices_each_moves_its_part():
    load = work(table(rows=100, dim=8, hotness=2.0), batch_size=5)
    two = Cluster.parse("1x2xH100", **PLAIN, host_memory=1e12, host_bandwidth=1.0)
    found = predict(Plan(2, (Placement("item", "row", (0, 1), cache=0.25),)), load, two)
    assert found.phases["host link"] == pytest.approx((0.75 * load.tables[0].distinct(20) * 32 / 2,) * 2)
    assert found.host_memory == (37 * 32, 37 * 32)
