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
