"""TensorBoard events, where TensorBoard is there."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from hybridrec.train import TensorBoard
from tests.train.clicks import QUIET, dataset, trainer_of


def test_without_tensorboard_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="TensorBoard events need: pip install tensorboard"):
        TensorBoard()


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_every_number_of_a_record_becomes_an_event(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed; pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ds = dataset(500)
    trainer = trainer_of(ds, out=tmp_path, options=replace(QUIET, tensorboard=True))
    trainer.fit(ds, ds)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"train/loss", "train/auc", "valid/auc", "train/samples_per_s"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("valid/auc")] == [5]
