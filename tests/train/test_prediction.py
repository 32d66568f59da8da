"""Scores in the order of rows, to arrays and files, with columns that pass through."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hybridrec as hr
from hybridrec.models import MMoE
from tests.train.clicks import QUIET, Trainer, clicks, dataset, trainer_of


@pytest.fixture(scope="module")
def trained() -> Trainer:
    ds = dataset(1000)
    trainer = trainer_of(ds)
    trainer.fit(ds)
    return trainer


def test_scores_do_not_depend_on_the_batch_size_and_keep_the_order(trained):
    one, other = (trained.predict(dataset(1000, batch_size=size)) for size in (1000, 7))
    np.testing.assert_allclose(one, other, atol=1e-6)
    again = trained.predict(dataset(1000))
    assert again.dtype == np.float32
    assert again.shape == (1000,)


def test_frames_of_all_kinds_give_the_scores_of_the_dataset(trained):
    columns = {name: column for name, column in clicks(100).items() if name != "click"}
    wanted = trained.predict(dataset(100))
    columns["user"] = columns["user"].astype(np.int32)  # another width than in training
    for frame in (columns, pa.table(columns), pd.DataFrame(columns), pl.DataFrame(columns)):
        np.testing.assert_allclose(trained.predict(frame), wanted, atol=1e-6)


def test_predicting_lets_no_row_into_a_table(trained):
    before = len(trained.model.embeddings["user"])
    trained.predict(clicks(100) | {"user": np.arange(10_000, 10_100)})
    assert len(trained.model.embeddings["user"]) == before


def test_a_missing_column_is_named(trained):
    columns = {name: column for name, column in clicks(10).items() if name not in ("age", "item")}
    with pytest.raises(
        ValueError, match=r"no column 'item', 'age', which the model was trained with \(item: id, int64\)"
    ):
        trained.predict(columns)


def test_a_column_that_cannot_be_cast_is_named(trained):
    with pytest.raises(ValueError, match="column 'user' is string, but was int64 in training, and cannot be cast"):
        trained.predict(clicks(3) | {"user": ["a", "b", "c"]})


def test_shuffled_data_is_refused(trained):
    with pytest.raises(ValueError, match=r"in the order of the rows, but the dataset has shuffle\(\)"):
        trained.predict(dataset(100).shuffle(seed=0))


def test_a_file_holds_the_columns_asked_for_then_the_score(trained, tmp_path):
    rows = clicks(250)
    when = [datetime(2026, 1, 1, 0, 0, second % 60, tzinfo=UTC) for second in range(250)]
    table = pa.table(
        {
            **rows,
            "request": pa.array([None if at == 3 else f"r{at}" for at in range(250)]),
            "place": pa.array([None if at == 4 else at for at in range(250)], pa.uint64()),
            "price": pa.array([None if at == 5 else at / 7 for at in range(250)], pa.float64()),
            "when": pa.array(when, pa.timestamp("us", "UTC")),
            "day": pa.array([date(2026, 1, 1 + at % 28) for at in range(250)]),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=60)
    ds = hr.data.parquet(str(tmp_path / "in.parquet"), batch_size=100)
    names = ["user", "request", "place", "price", "when", "day", "tags"]
    assert trained.predict(ds, out=tmp_path / "out.parquet", columns=names) == 250
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == [*names, "score"]
    for name in ("user", "place", "when", "day", "tags"):
        assert found[name].to_pylist() == table[name].to_pylist(), name
        assert name == "tags" or found[name].type == table[name].type
    assert found["request"].to_pylist()[:5] == ["r0", "r1", "r2", "", "r4"]
    price = found["price"].to_pylist()
    assert price[5] != price[5]
    assert price[6] == 6 / 7
    np.testing.assert_allclose(found["score"].to_numpy(), trained.predict(ds), atol=1e-6)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, None, False]),
        pa.array([date(2026, 1, 1), None, date(1960, 1, 1)]),
        pa.array([datetime(2026, 1, 1), None, datetime(1960, 1, 1)], pa.timestamp("ns")),
        pa.array([1, None, 3], pa.time32("ms")),
        pa.array([1, None, -3], pa.duration("ms")),
    ],
    ids=lambda column: str(column.type),
)
def test_nulls_of_bools_and_times_pass_through_as_nulls(trained, tmp_path, column):
    data = hr.data.table(pa.table(clicks(100)).slice(0, 3).append_column("beside", column), batch_size=2)
    trained.predict(data, out=tmp_path / "out.parquet", columns=["beside"])
    found = pq.read_table(tmp_path / "out.parquet")["beside"]
    assert found.combine_chunks() == column


def test_files_appear_whole_or_not_at_all(trained, tmp_path):
    (tmp_path / "out.parquet").write_text("precious")
    with pytest.raises(FileExistsError, match="pass --force"):
        trained.predict(dataset(10), out=tmp_path / "out.parquet")
    trained.predict(dataset(10), out=tmp_path / "out.parquet", force=True)
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 10
    with pytest.raises(ValueError, match="no column 'usr' to pass through; the data has user, item"):
        trained.predict(dataset(10), out=tmp_path / "b.parquet", columns=["usr"])
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_scores_are_not_written_over_the_rows_they_are_of(trained, tmp_path):
    rows = pa.table(clicks(20))
    pq.write_table(rows, tmp_path / "rows.parquet")
    ds = hr.data.parquet(tmp_path / "rows.parquet", label="click", batch_size=8)
    with pytest.raises(ValueError, match="is one of the files to read; name another"):
        trained.predict(ds, out=tmp_path / "rows.parquet", force=True)
    assert pq.read_table(tmp_path / "rows.parquet").equals(rows)


def test_training_goes_on_after_a_column_could_not_be_written(trained, tmp_path):
    column = pa.array([Decimal(1), None, Decimal(3)])
    data = hr.data.table(pa.table(clicks(100)).slice(0, 3).append_column("beside", column), batch_size=2)
    with pytest.raises(ValueError, match="column 'beside'") as kept:  # as a notebook keeps the last error
        trained.predict(data, out=tmp_path / "out.parquet", columns=["beside"])
    assert torch.is_grad_enabled()
    assert kept.tb is not None


def test_several_labels_give_several_scores(tmp_path):
    rows = clicks(100) | {"like": clicks(100, seed=1)["click"]}
    ds = hr.data.table(rows, label=["click", "like"], batch_size=30)
    trainer = Trainer(MMoE(ds.schema, dim=4), options=QUIET)
    trainer.fit(ds)
    assert trainer.predict(rows).shape == (100, 2)
    trainer.predict(rows, out=tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["score_click", "score_like"]


def test_columns_without_a_file_and_a_single_name_are_refused(trained):
    with pytest.raises(ValueError, match="columns= go into the file of out="):
        trained.predict(dataset(10), columns=["user"])
    with pytest.raises(TypeError, match=r"columns is the string 'user'; it must be a list, such as \['user'\]"):
        trained.predict(dataset(10), out="x", columns="user")


def test_no_rows_give_no_scores(trained, tmp_path):
    nothing = dataset(100).where([("user", ">", 1000)])
    assert trained.predict(nothing).shape == (0,)
    assert trained.predict(nothing, out=tmp_path / "out.parquet") == 0


def test_a_nan_in_a_dense_column_is_named_with_file_and_row(trained, tmp_path):
    columns = clicks(150)
    columns["age"][77] = np.nan
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=40)
    data = hr.data.parquet(tmp_path / "a.parquet", batch_size=32)
    with pytest.raises(ValueError, match=r"column 'age' is nan in .*/a.parquet, row 77, so its score is not a number"):
        trained.predict(data, out=tmp_path / "scores.parquet")
    assert not (tmp_path / "scores.parquet").exists()
    with pytest.raises(ValueError, match="column 'age' is nan in row 77, so"):
        trained.predict(columns)
    assert np.isfinite(trained.predict(pd.DataFrame(columns))).all()  # pandas writes a null as NaN


def test_a_model_that_gives_no_numbers_is_told_from_data(trained):
    ds = dataset(100)
    spoilt = trainer_of(ds)
    next(spoilt.model.net.parameters()).data.fill_(np.nan)
    with pytest.raises(ValueError, match="the score of row 0 is not a number, though its dense columns are"):
        spoilt.predict(ds)


def test_a_file_of_no_rows_has_all_columns(trained, tmp_path):
    data = dataset(100).where([("user", "<", 0)])
    trained.predict(data, out=tmp_path / "none.parquet", columns=["user", "tags", "age"])
    trained.predict(dataset(100), out=tmp_path / "some.parquet", columns=["user", "tags", "age"])
    assert pq.read_schema(tmp_path / "none.parquet") == pq.read_schema(tmp_path / "some.parquet")
    assert pq.read_metadata(tmp_path / "none.parquet").num_rows == 0
