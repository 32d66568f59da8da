"""Files and settings among the words of a command line."""

from __future__ import annotations

import pytest

from hybridrec.train.settings import names, nearest, words_of


def test_folders_of_keys_and_globs_are_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    words = ["day=3", "day=*", "logs/day=4/a.parquet", "train.epochs=2", "loss=mse", "s3://bucket/day=3"]
    assert words_of(words).data == ["day=3", "day=*", "logs/day=4/a.parquet", "s3://bucket/day=3"]
    assert words_of(words).settings == ["train.epochs=2", "loss=mse"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("modle.dim=3", r"did you mean model.dim=3\?"),
        ("dim=3", r"did you mean model.dim=3\?"),
        ("lr=0.1", r"did you mean optimizer.lr=0.1\?"),
        ("metric=auc", r"did you mean metrics=auc\?"),
        ("zork=1", "settings are SECTION.NAME=VALUE"),
    ],
)
def test_a_setting_that_is_none_names_the_nearest(word, hint):
    with pytest.raises(ValueError, match=f"'{word}' is neither a file nor a setting; {hint}"):
        words_of([word])


def test_every_setting_is_its_own_nearest():
    assert [nearest(name) for name in names()] == names()
