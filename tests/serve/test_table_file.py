"""Rows for serving: whole tables only."""

from __future__ import annotations

import pytest

from hybridrec.embedding import Table
from hybridrec.embedding.dense_store import DenseStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.share import Share
from hybridrec.serve import table_file


@pytest.mark.parametrize("share", [Share(1, 2), Share(column=2), Share(empty=True)])
def test_a_share_of_a_table_is_not_taken_for_all_of_it(share, tmp_path):
    stores = DenseStore(Table("item", 4, rows=5), share=share), HashStore(Table("item", 4, capacity=5), share=share)
    for store in stores:
        with pytest.raises(ValueError, match=r"table 'item' lies on several ranks, .*; save a checkpoint, and export"):
            table_file.write(tmp_path / "item.arrow", store)
    assert list(tmp_path.iterdir()) == []
