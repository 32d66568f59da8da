"""The page of a run that the Trainer made: every file is there, and what it holds is shown."""

from __future__ import annotations

import numpy as np

import hybridrec as hr
from hybridrec.models import build
from hybridrec.train import Trainer, TrainOptions
from tests.train.report.test_page import text_of


def test_a_run_of_the_trainer_has_a_page_without_notes(tmp_path):
    draw = np.random.default_rng(0)
    data = {"user": draw.integers(0, 50, 2000), "age": draw.normal(size=2000).astype(np.float32)}
    data |= {name: draw.integers(0, 2, 2000).astype(np.int8) for name in ("click", "like")}
    train, valid = hr.data.table(data, label=("click", "like"), batch_size=100).split(0.8)
    options = TrainOptions(log_every=2, validate_every=4, progress="none")
    Trainer(build("mmoe", train.schema, dim=4), out=tmp_path / "run", options=options).fit(train, validate=valid)
    text = text_of(tmp_path / "run" / "report.html")
    assert "Notes" not in text
    for wanted in (
        "mmoe · finished",
        "click",
        "like",
        "AUC",
        "observed by predicted",
        "user",
        "forward",
        "Learning rate of rows",
    ):
        assert wanted in text
