"""Row filters in both forms."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hybridrec.data.where import as_expression, evaluate, filter_columns

BATCH = pa.record_batch({"day": [1, 2, None, 4], "city": ["a", None, "b", "b"], "x (y)": [0.5, 1.5, 2.5, 3.5]})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (pc.field("day") >= 2, [False, True, False, True]),
        ([("day", ">=", 2)], [False, True, False, True]),
        (("day", ">=", 2), [False, True, False, True]),
        ([("day", ">=", 2), ("city", "=", "b")], [False, False, False, True]),
        ([[("day", "<", 2)], [("city", "in", ["b"])]], [True, False, True, True]),
        (~(pc.field("day") == 2), [True, False, False, True]),
        (pc.field("day").is_null(), [False, False, True, False]),
        (pc.scalar(True), [True, True, True, True]),
        (pc.field("x (y)") > 2, [False, False, True, True]),
    ],
)
def test_an_expression_gives_a_bool_for_each_row_and_null_is_false(where, expected: list[bool]):
    expression = as_expression(where)
    columns = filter_columns(expression, BATCH.schema)
    batch = BATCH.select(columns) if columns else BATCH
    assert evaluate(expression, batch).tolist() == expected


def test_the_columns_of_an_expression_are_found_once_each():
    expression = (pc.field("city") == "a") | (pc.field("day") > 1) & (pc.field("day") < 3)
    assert sorted(filter_columns(expression, BATCH.schema)) == ["city", "day"]


def test_an_unknown_column_is_named_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"unknown column 'dya'; the columns are day, city, x \(y\)"):
        filter_columns(pc.field("dya") > 3, BATCH.schema)


def test_a_nested_field_reference_is_told_the_dotted_name():
    with pytest.raises(ValueError, match=r"write a struct's field as pc\.field\('user\.age'\)"):
        filter_columns(pc.field("user", "age") > 3, pa.schema({"user.age": pa.int64()}))


def test_an_expression_that_does_not_fit_the_types_shows_them():
    with pytest.raises(ValueError, match="city: string"):
        filter_columns(pc.field("city") > 3, BATCH.schema)


def test_an_expression_that_is_no_condition_is_refused():
    with pytest.raises(ValueError, match="it must give a boolean"):
        filter_columns(pc.field("day") + 1, BATCH.schema)


@pytest.mark.parametrize("where", ["day > 3", [], None, 3])
def test_other_forms_of_where_are_type_errors(where):
    with pytest.raises(TypeError, match="where must be"):
        as_expression(where)


def test_an_unknown_operator_is_an_error_that_shows_the_condition():
    with pytest.raises(ValueError, match="'~~'"):
        as_expression([("day", "~~", 3)])


def test_an_empty_chunk_gives_an_empty_mask():
    assert evaluate(pc.field("day") > 1, BATCH.slice(0, 0).select(["day"])).shape == (0,)
