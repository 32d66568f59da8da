"""Plan and Placement: values that can be written, read and printed."""

from __future__ import annotations

import pytest

from hybridrec.parallel import Cluster, Placement, Plan, predict

from .cases import SMALL, table, work

WHOLE = Plan(
    4,
    (
        Placement("a", "replicated", (0, 1, 2, 3)),
        Placement("b", "column", (3, 0), columns=(5, 4), reason="least time"),
        Placement("c", "row", (0, 1, 3), where="host"),
    ),
)


def test_a_plan_is_read_as_it_was_written():
    back = Plan.from_json(WHOLE.to_json())
    assert back == WHOLE
    assert back["b"].reason == "least time"
    assert hash(back) == hash(WHOLE)


def test_a_table_in_tiers_is_written_read_and_shown_with_its_share_of_hot_rows():
    plan = Plan(1, (Placement("a", "table", (0,), cache=0.125), Placement("b", "replicated", (0,))))
    back = Plan.from_json(plan.to_json())
    assert (back, back["a"].cache, back["b"].cache) == (plan, 0.125, None)
    assert back != Plan(1, (Placement("a", "table", (0,), cache=0.25), plan["b"]))
    assert str(plan).splitlines()[1].split("  ")[-1] == "device, 12.5 % hot"
    assert "cache" not in Plan(1, (plan["b"],)).to_json(), "such plans are as they were before"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ('"cache": 1.5', "placement of table 'a': cache is 1.5; it must be the share of rows that is hot"),
        ('"cache": true', "cache is True; it must be the share"),
        ('"cache": "0.5"', "cache is '0.5'; it must be the share"),
        ('"cache": 0.5, "where": "host"', "where 'host'; hot rows are on the 'device'"),
        ('"hot": 0.5', "this is no plan: .*unexpected keyword argument 'hot'.*; write one with hybridrec plan --save"),
    ],
)
def test_tiers_that_make_no_sense_are_refused_where_a_plan_is_read(field, said):
    placement = '{"table": "a", "scheme": "table", "devices": [0], "columns": [], %s}' % field  # noqa: UP031
    with pytest.raises(ValueError, match=said):
        Plan.from_json('{"version": 1, "world": 1, "placements": [%s]}' % placement)  # noqa: UP031


def test_a_plan_that_lacks_something_is_refused_by_what_it_lacks():
    with pytest.raises(ValueError, match=r"this is no plan: 'placements'; write one"):
        Plan.from_json('{"version": 1, "world": 1}')


def test_a_plan_tells_what_a_device_holds():
    assert [each.table for each in WHOLE.on(0)] == ["a", "b", "c"]
    assert [each.table for each in WHOLE.on(2)] == ["a"]
    assert "(5 + 4 columns)" in str(WHOLE)
    assert "0-1, 3" in str(WHOLE)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(ValueError, match="this is no plan"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Placement("a", "rows", (0,)), "scheme is 'rows'"),
        (lambda: Placement("a", "row", (0,), where="disk"), "where is 'disk'"),
        (lambda: Placement("a", "row", ()), "at least one"),
        (lambda: Placement("a", "row", (1, 1)), "each once"),
        (lambda: Placement("a", "table", (0, 1)), "has one device"),
        (lambda: Placement("a", "replicated", (0, 1), cache=0.5), "a replicated table has no cold ones"),
        (lambda: Placement("a", "column", (0, 1)), "columns are"),
        (lambda: Placement("a", "row", (0, 1), columns=(1, 1)), "others none"),
        (lambda: Placement("a", "column", (0, 1), columns=(1,)), "1 column slices for 2 devices"),
        (lambda: Plan(1, (Placement("a", "row", (0, 1)),)), "outside of 1 devices"),
        (lambda: Plan(2, (Placement("a", "replicated", (0,)),)), "must be on all 2 devices"),
        (lambda: Plan(1, (Placement("a", "row", (0,)),) * 2), "'a' is placed more than once"),
    ],
)
def test_placements_that_make_no_sense_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_plan_of_other_tables_or_devices_is_not_predicted():
    plan = Plan(4, (Placement("item", "column", (0, 1), columns=(4, 3)),))
    with pytest.raises(ValueError, match="the columns are 7, the table has 8"):
        predict(plan, work(table()), SMALL)
    with pytest.raises(ValueError, match="differ in table"):
        predict(plan, work(table("user")), SMALL)
    with pytest.raises(ValueError, match="for 4 devices, and 1x2xcpu has 2"):
        predict(plan, work(table()), Cluster.parse("1x2xcpu"))
    with pytest.raises(KeyError, match="no table 'user'; it has item"):
        plan["user"]
