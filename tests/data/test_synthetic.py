"""Click data: determinism, the planted AUC, the shape of the columns, the files."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridrec.data.synthetic import BLOCK, METADATA_KEY, Clicks, schema, tables, write
from hybridrec.data.synthetic.auc import StreamingAuc, expected_auc
from hybridrec.data.synthetic.clicks import Planted, PowerLaw

SMALL = Clicks(ids=4, dense=2, histories=1, vocabulary=500)


def table(rows: int, **options) -> pa.Table:
    return pa.Table.from_batches(tables(rows, clicks=SMALL, **options)).combine_chunks()


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """By ranks, ties given their mean rank."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(labels.sum())
    negatives = len(labels) - positives
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@pytest.mark.parametrize("chunk_rows", [1, 777, BLOCK, 50_000])
def test_rows_do_not_depend_on_the_chunk_size(chunk_rows):
    rows = 300 if chunk_rows == 1 else BLOCK + 900
    assert table(rows, chunk_rows=chunk_rows).equals(table(rows))


def test_fewer_rows_are_a_prefix_of_more():
    assert table(BLOCK + 5).equals(table(2 * BLOCK + 7).slice(0, BLOCK + 5).combine_chunks())


def test_another_seed_gives_other_rows():
    one, two = table(1000, seed=1), table(1000, seed=2)
    assert not any(one.column(name).equals(two.column(name)) for name in one.column_names)


def test_the_data_of_a_seed_never_change():
    """Frozen: published results name the seed, so the generator may not drift."""
    block = Planted(SMALL, seed=3).block(0)
    assert [ids[:6].tolist() for ids in block.ids] == FROZEN_IDS
    assert block.histories[0][0][:6].tolist() == FROZEN_HISTORY
    assert np.allclose(block.dense[0][:3], FROZEN_DENSE, atol=0, rtol=0)
    assert block.click[:24].tolist() == FROZEN_CLICKS


FROZEN_IDS = [
    [9, 3, 0, 8, 1, 0],
    [4, 26, 3, 23, 24, 4],
    [51, 113, 65, 113, 27, 51],
    [30, 344, 328, 434, 224, 258],
]
FROZEN_HISTORY = [399, 490, 35, 333, 152, 394]
FROZEN_DENSE = [1.3841923475265503, 1.477724552154541, 2.2677664756774902]
FROZEN_CLICKS = [0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0]


def test_the_defaults_are_26_ids_13_dense_2_histories_and_a_label():
    names = schema().names
    assert names[0] == "click"
    assert len([n for n in names if n.startswith("id_")]) == 26
    assert len([n for n in names if n.startswith("dense_")]) == 13
    assert len([n for n in names if n.startswith("history_")]) == 2
    assert schema().field("history_1").type.value_type == pa.int64()
    assert Clicks().vocabularies[0] == 10
    assert Clicks().vocabularies[-1] == 200_000


def test_the_stated_auc_is_that_of_the_stored_probabilities_against_the_stored_labels(tmp_path):
    summary = write(tmp_path / "a.parquet", rows=40_000, clicks=SMALL, probability=True)
    data = pq.read_table(tmp_path / "a.parquet")
    labels = data["click"].to_numpy()
    assert summary.best_auc == pytest.approx(exact_auc(data["probability"].to_numpy(), labels), abs=2e-5)
    assert summary.click_rate == labels.mean()


def test_the_default_model_has_a_best_auc_of_about_080_and_a_click_rate_of_a_quarter(tmp_path):
    summary = write(tmp_path / "a.parquet", rows=100_000)
    assert summary.best_auc == pytest.approx(0.80, abs=0.005)
    assert summary.click_rate == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize(("auc", "rate"), [(0.65, 0.03), (0.95, 0.5), (0.5, 0.25)])
def test_other_aucs_and_click_rates_can_be_planted(auc, rate):
    planted = Planted(Clicks(ids=6, dense=3, histories=1, auc=auc, click_rate=rate), seed=5)
    probabilities = np.concatenate([planted.block(i).probability for i in range(4)])
    assert expected_auc(np.sort(probabilities)) == pytest.approx(auc, abs=0.01)
    assert probabilities.mean() == pytest.approx(rate, rel=0.1)


def test_per_id_effects_let_frequent_ids_be_learned_from_counts():
    """A naive Bayes score from training counts alone must find much of the signal in fresh rows."""
    spec = Clicks(ids=6, dense=0, histories=0, vocabulary=1000)
    planted = Planted(spec, seed=0)
    train, test = [planted.block(i) for i in range(6)], [planted.block(i) for i in range(6, 8)]
    score = np.zeros(2 * BLOCK)
    for column, size in enumerate(spec.vocabularies):
        ids = np.concatenate([block.ids[column] for block in train])
        clicks = np.concatenate([block.click for block in train])
        shown, clicked = np.bincount(ids, minlength=size), np.bincount(ids, clicks, minlength=size)
        rate = (clicked + 25) / (shown + 100)
        score += np.log(rate / (1 - rate))[np.concatenate([block.ids[column] for block in test])]
    labels = np.concatenate([block.click for block in test])
    best = exact_auc(np.concatenate([block.probability for block in test]), labels)
    assert (exact_auc(score, labels) - 0.5) / (best - 0.5) > 0.8


def test_popularity_follows_the_power_law_and_ids_fill_their_range():
    law = PowerLaw.of_column(seed=0, column=0, size=1000)
    ids, ranks = law.draw(np.random.Philox(1).random_raw(1 << 18))
    assert ids.min() >= 0
    assert ids.max() < 1000
    counts = np.bincount(ranks.astype(int))
    edges = np.array([1.0, 2.0, 11.0])
    chances = (1 - edges ** (-1 / law.m)) / (1 - 1001 ** (-1 / law.m))
    assert counts[0] / len(ids) == pytest.approx(chances[1], rel=0.02)
    assert counts[:10].sum() / len(ids) == pytest.approx(chances[2], rel=0.02)
    # One id per rank: the scattering is a bijection.
    assert len(np.unique(ids)) == len(np.unique(ranks)) == len(np.unique(ids + 1000 * ranks))


def test_histories_are_ragged_with_the_mean_asked_for_and_share_ids_with_their_column():
    spec = Clicks(ids=3, dense=0, histories=1, vocabulary=50, history_length=7)
    values, offsets = Planted(spec, 0).block(0).histories[0]
    lengths = np.diff(offsets)
    assert lengths.mean() == pytest.approx(7, rel=0.05)
    assert lengths.min() == 0
    assert lengths.max() <= 28
    assert values.min() >= 0
    assert values.max() < 50


def test_several_files_hold_the_same_rows_and_all_know_the_auc(tmp_path):
    one = write(tmp_path / "one.parquet", rows=5003, clicks=SMALL)
    many = write(tmp_path / "many", rows=5003, clicks=SMALL, files=3, row_group_rows=600)
    assert [pq.read_metadata(file).num_rows for file in many.files] == [1667, 1668, 1668]
    parts = pa.concat_tables([pq.read_table(file) for file in many.files])
    assert parts.combine_chunks().equals(pq.read_table(one.files[0]).combine_chunks())
    for file in many.files:
        about = json.loads(pq.read_metadata(file).metadata[METADATA_KEY.encode()])
        assert about["best_auc"] == one.best_auc == many.best_auc
        assert about["rows"] == 5003
    assert sorted(p.name for p in tmp_path.iterdir()) == ["many", "one.parquet"]


def test_row_groups_have_the_size_asked_for(tmp_path):
    write(tmp_path / "a.parquet", rows=2500, clicks=SMALL, row_group_rows=1000)
    footer = pq.read_metadata(tmp_path / "a.parquet")
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [1000, 1000, 500]


def test_zero_rows_make_a_readable_file_without_an_auc(tmp_path):
    summary = write(tmp_path / "a.parquet", rows=0, clicks=SMALL)
    assert summary.best_auc is None
    assert pq.read_table(tmp_path / "a.parquet").schema.names == SMALL.names


def test_progress_counts_the_rows(tmp_path):
    seen: list[int] = []
    write(tmp_path / "a.parquet", rows=2500, clicks=SMALL, row_group_rows=1000, progress=seen.append)
    assert seen == [1000, 2000, 2500]


@pytest.mark.parametrize("files", [1, 3])
def test_an_error_in_the_middle_leaves_nothing(tmp_path, files):
    def fail(done: int) -> None:
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        write(tmp_path / "out", rows=5000, clicks=SMALL, files=files, row_group_rows=100, progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_refused_without_force_and_replaced_with(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, rows=10, clicks=SMALL)
    with pytest.raises(FileExistsError, match=r"a\.parquet exists; pass --force"):
        write(path, rows=20, clicks=SMALL)
    assert pq.read_metadata(path).num_rows == 10
    write(path, rows=20, clicks=SMALL, force=True)
    assert pq.read_metadata(path).num_rows == 20


def test_force_replaces_a_folder_of_parts_but_no_other_folder(tmp_path):
    folder = tmp_path / "out"
    write(folder, rows=10, clicks=SMALL, files=3)
    write(folder, rows=20, clicks=SMALL, files=2, force=True)
    assert sorted(p.name for p in folder.iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"holds thesis\.txt"):
        write(folder, rows=20, clicks=SMALL, files=2, force=True)
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": -1}, "rows=-1 must be a whole number of at least 0"),
        ({"files": 0}, "files=0 must be a whole number from 1 to 200"),
        ({"row_group_rows": 0}, "row_group_rows=0 must be"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"files": 2}, r"2 files need a folder, and .*x\.parquet names a file"),
    ],
)
def test_wrong_arguments_name_the_value_and_the_rule(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "x.parquet", **{"rows": 10, "clicks": SMALL, **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": 0}, "ids=0 must be a whole number from 1"),
        ({"auc": 0.3}, "auc=0.3 must lie between"),
        ({"click_rate": 0.0}, "click_rate=0.0 must lie"),
        ({"vocabulary": 3}, "vocabulary=3 must be"),
        ({"histories": 27}, "histories=27 must be a whole number from 0 to 26"),
    ],
)
def test_a_wrong_specification_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Clicks(**options)


def test_the_streaming_auc_equals_the_exact_one_on_coarse_scores():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 64, 5000) / 64
    labels = (rng.random(5000) < scores).astype(np.int8)
    streaming = StreamingAuc()
    for part in np.array_split(np.arange(5000), 7):
        streaming.add(scores[part], labels[part])
    assert math.isclose(streaming.value() or 0, exact_auc(scores, labels), rel_tol=1e-12)


def test_the_auc_of_a_single_class_is_undefined():
    streaming = StreamingAuc()
    streaming.add(np.array([0.2, 1.0]), np.array([1, 1]))
    assert streaming.value() is None


def test_importing_it_does_not_import_torch():
    code = "import sys, hybridrec.data.synthetic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
