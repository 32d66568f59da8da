"""The KuaiRand recipe: what it joins, and what it reaches from April to May."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes import kuairand
from recipes.kuairand import LABELS, Settings, settings_for

# What the same model reaches that was trained for the label alone, in the mean of three seeds: docs/models.md.
ALONE = {"is_click": 0.7422, "long_view": 0.7450, "is_like": 0.8800}


@pytest.fixture(autouse=True)
def data(shared_data, monkeypatch):
    monkeypatch.setenv("HYBRIDREC_DATA", str(shared_data))


def mean_aucs(model: str, labels: tuple[str, ...], seeds: int) -> dict[str, float]:
    settings = settings_for(model, labels)
    train, test = kuairand.split(settings, check=False)
    found = [kuairand.aucs(kuairand.train(train, settings, seed), test) for seed in range(seeds)]
    return {label: float(np.mean([each[label] for each in found])) for label in labels}


def test_nothing_that_is_known_only_afterwards_is_a_feature():
    after = {"play_time_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter", "time_ms", "date"}
    after |= {"is_follow", "is_comment", "is_forward", "is_hate", *LABELS[1:]}
    schema = kuairand.dataset(kuairand.APRIL, Settings()).schema
    assert not after & {feature.name for feature in schema.of("id", "dense")}
    assert [feature.name for feature in schema.of("label")] == ["is_click"]


def test_histories_end_before_the_test_month():
    last = pq.read_table(kuairand.folder() / "user_history_sequences.parquet")["last_time_ms"].to_numpy().max()
    assert last < pq.read_table(kuairand.folder() / kuairand.MAY)["time_ms"].to_numpy().min()


def test_a_check_splits_april_by_day():
    log = pq.read_table(kuairand.folder() / kuairand.APRIL)["date"].to_numpy()
    kept, held_out = kuairand.split(Settings(), check=True)
    assert (kept.num_rows, held_out.num_rows) == ((log < 20220429).sum(), (log >= 20220429).sum())


def test_statistics_of_videos_and_users_are_shares_of_the_histories():
    histories = pa.table(
        {
            "user_id": [1, 2],
            "history_len": [3, 1],
            "watch_seq": [[0, 2, 2], [2]],
            "long_watch_seq": [[2], [2]],
            "like_seq": pa.array([[0], None], pa.list_(pa.int64())),
        }
    )
    videos = kuairand.of_videos(histories)
    assert videos["video_watched"].to_pylist() == pytest.approx(np.log1p([1, 0, 3]).tolist())
    assert videos["video_long_rate"].to_pylist() == pytest.approx([5 / 11, 5 / 10, 7 / 13])  # drawn to 2 / 4
    users = kuairand.of_users(histories)
    assert users["user_long_rate"].to_pylist() == pytest.approx([3.5 / 8, 3.5 / 6])
    assert users["user_like_rate"].to_pylist() == pytest.approx([6 / 23, 5 / 21])  # drawn to 1 / 4


@pytest.mark.slow
def test_din_reaches_its_figure():
    assert mean_aucs("din", LABELS[:1], seeds=1)["is_click"] >= 0.735  # docs/models.md has three


@pytest.mark.slow
def test_mmoe_is_as_good_for_each_label_as_a_model_for_that_label_alone():
    together = mean_aucs("mmoe", LABELS, seeds=3)
    assert {label: auc for label, auc in together.items() if auc < ALONE[label] - 0.002} == {}
