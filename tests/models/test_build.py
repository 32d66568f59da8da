from __future__ import annotations

import pytest

from hybridrec.embedding import MinCount
from hybridrec.models import NAMES, DeepFM, build
from tests.models.clicks import dataset

SCHEMA = dataset().schema


def test_the_names_are_those_of_the_seven_models():
    assert NAMES == ("widedeep", "dlrm", "deepfm", "dcnv2", "din", "mmoe", "twotower")


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match="no model 'deepfn'; there are widedeep, dlrm"):
        build("deepfn", SCHEMA)


def test_an_unknown_option_lists_those_of_the_model():
    with pytest.raises(ValueError, match="'dlrm' has no option 'hidden'; it takes dim, bottom, top, dropout, tables"):
        build("dlrm", SCHEMA, hidden=[8])


def test_policies_of_tables_survive_the_config():
    model = DeepFM(SCHEMA, tables={"user": {"capacity": 100, "admission": MinCount(2)}})
    again = build("deepfm", SCHEMA, **model.config())
    assert again.embeddings.tables == model.embeddings.tables
    assert again.embeddings.tables["user"].admission == MinCount(2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("deepfm", {"dim": -3}, "model.dim is -3; it must be a whole number from 1 on, such as model.dim=16"),
        ("deepfm", {"dim": True}, "model.dim is True"),
        ("deepfm", {"hidden": "abc"}, r"model.hidden is 'abc'; it must be a list of whole numbers"),
        ("dcnv2", {"rank": "low"}, "model.rank is 'low'; it must be a whole number from 1 on, or none"),
        ("deepfm", {"dropout": "much"}, "model.dropout is 'much'; it must be a number from 0 on"),
        (
            "din",
            {"history": "seen"},
            r'model.history is \'seen\'; it must be a table of names, such as .*\{seen="item"\}',
        ),
        ("din", {}, r"model 'din' needs 'history', names of features: model.history=\{seen="),
    ],
)
def test_a_value_of_another_kind_is_refused_with_an_example(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, SCHEMA, **options)


def test_a_single_name_stands_for_a_list_of_one():
    assert build("twotower", SCHEMA, item="item").config()["item"] == ["item"]
