"""The tables that a model would have, without its memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

import hybridrec as hr
from hybridrec.embedding import EmbeddingCollection, MultiHash
from hybridrec.models import build
from hybridrec.parallel.declared import declared

SCHEMA = hr.data.Schema.infer(
    pa.schema({"user": pa.int64(), "item": pa.int64(), "past": pa.list_(pa.int64()), "click": pa.int8()}), label="click"
)
IN_FILES = {"dtype": "float32", "cache": 9, "cold": torch.int8, "path": "rows"}
TABLES = {"*": {"dtype": "float16"}, "user": {"rows": 77, **IN_FILES}, "item": {"hashes": MultiHash(2, 30)}}
OPTIONS = {"din": {"history": {"past": "item"}}, "twotower": {"user": ["user", "past"], "item": ["item"]}}


@pytest.mark.parametrize("name", ["widedeep", "dlrm", "deepfm", "dcnv2", "mmoe"])
def test_the_tables_are_those_of_the_model(name):
    config = {"dim": 8, "tables": TABLES, **OPTIONS.get(name, {})}
    model = build(name, SCHEMA, **config)
    real = {k: t for part in model.modules() if isinstance(part, EmbeddingCollection) for k, t in part.tables.items()}
    found = declared(name, SCHEMA, config, hr.optim.Adagrad)
    assert {table.name: table for table in found.tables} == real
    assert set(found.rules) == set(real)


def test_a_table_larger_than_any_memory_takes_none():
    found = declared("dlrm", SCHEMA, {"dim": 512, "tables": {"user": {"rows": 4 * 10**9}}}, hr.optim.SGD)
    assert found.tables[0].rows == 4 * 10**9
    assert found.rules["user"].state == ()
