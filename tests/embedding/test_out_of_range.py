from __future__ import annotations

import re

import pytest
import torch

from hybridrec.data import NULL_ID
from hybridrec.embedding import Table
from hybridrec.embedding.id_hash import hashed_rows
from hybridrec.embedding.out_of_range import resolve

IDS = torch.tensor([0, 9, 10, -1, 2**63 - 1, NULL_ID])


def table(policy: str) -> Table:
    return Table("item", 4, rows=10, out_of_range=policy)


def test_ids_within_the_table_are_rows_under_every_policy():
    for policy in ("error", "hash", "zero"):
        assert resolve(table(policy), IDS[:2]).tolist() == [0, 9]


def test_ids_beyond_are_hashed_to_a_row_or_have_none():
    assert resolve(table("zero"), IDS).tolist() == [0, 9, -1, -1, -1, -1]
    hashed = resolve(table("hash"), IDS)
    assert hashed[:2].tolist() == [0, 9]
    assert hashed[2:].tolist() == hashed_rows(IDS[2:], 10).tolist()


def test_the_error_names_id_position_feature_table_and_remedy():
    with pytest.raises(
        ValueError, match=re.escape("id 10 at position 2 of feature 'clicks' is outside table 'item', 0 … 9")
    ):
        resolve(table("error"), IDS, "clicks")
    with pytest.raises(
        ValueError, match=r"id -1 at position 0 is outside .* give the table out_of_range='hash' or 'zero'"
    ):
        resolve(table("error"), IDS[3:])


def test_the_error_says_when_the_id_stands_for_a_null():
    with pytest.raises(ValueError, match="this id stands for a null: choose another null policy when loading"):
        resolve(table("error"), IDS[5:], "clicks")
