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
