"""Errors about labels name the file and its row, whatever batch met them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from tests.train.clicks import clicks, dataset, trainer_of


@pytest.fixture
def spoilt(tmp_path):
    """Two files; the label in row 77 of the second one is 7."""
    for number in range(2):
        columns = clicks(150, seed=number)
        columns["click"] = np.where((np.arange(150) == 77) & (number == 1), 7, columns["click"]).astype(np.int8)
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet", row_group_size=40)
    return hr.data.parquet(tmp_path, label="click", batch_size=32)


def test_a_shuffled_dataset_names_the_row_of_the_file(spoilt):
    with pytest.raises(ValueError, match=r"label 'click' is 7 in .*/1.parquet, row 77, but loss 'bce' takes 0 to 1"):
        trainer_of(dataset(100)).fit(spoilt.shuffle(seed=1))


def test_a_filtered_dataset_names_the_row_of_the_file(spoilt):
    with pytest.raises(ValueError, match=r"/1.parquet, row 77,"):
        trainer_of(dataset(100)).evaluate(spoilt.where([("user", ">", 3)]))


def test_batches_of_somebody_else_name_the_row_of_the_batch(spoilt):
    with pytest.raises(ValueError, match=r"is 7 in row [0-9]+ of the batch"):
        trainer_of(dataset(100)).evaluate(list(spoilt))
