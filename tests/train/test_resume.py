"""A fit that is cut off and taken up again ends as if nothing had happened."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hybridrec.train import Callback, EarlyStopping, Schedule, Trainer, TrainOptions
from tests.patience import PATIENCE
from tests.train.clicks import QUIET, assert_same, dataset, model_of, numbers_of, trainer_of, weights


class StopAt(Callback):
    """Raises, as a crash would, after so many steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer, result):
        if trainer.step == self.step:
            raise ConnectionError("the power is gone")


FULL = replace(
    QUIET,
    save_every=7,
    keep=2,
    clip_norm=1.0,
    schedule=Schedule("cosine", warmup=5),
    row_schedule=Schedule("linear"),
    early_stopping=EarlyStopping("auc", patience=5),
    log_every=6,
)
PLAIN = replace(FULL, early_stopping=None)  # for fits without validation


def train_of(rows: int = 2000):
    return dataset(rows).shuffle(seed=3)


def dropout_trainer(out, options: TrainOptions = FULL, callbacks=()):
    ds = train_of()
    return trainer_of(ds, model_of(ds, dropout=0.3), out=out, options=options, callbacks=callbacks)


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """A trainer whose fit of three epochs nothing cut off, by how many batches make a step: fitted once."""

    @functools.cache
    def fitted(accumulate: int) -> Trainer:
        trainer = dropout_trainer(tmp_path_factory.mktemp("alone"), replace(FULL, accumulate=accumulate))
        trainer.fit(train_of(), dataset(500), epochs=3)
        return trainer

    return fitted


@pytest.mark.parametrize(
    ("accumulate", "crash"), [(1, 6), (1, 7), (1, 13), (1, 20), (1, 21), (1, 39), (3, 6), (3, 7), (3, 13), (3, 20)]
)
def test_a_crash_at_any_step_changes_nothing(tmp_path, left_alone, accumulate, crash):
    """20 batches an epoch, 3 epochs: before the first save, mid-epoch, at a save, at an epoch's end."""
    options, valid, alone = replace(FULL, accumulate=accumulate), dataset(500), left_alone(accumulate)
    with pytest.raises(ConnectionError):
        dropout_trainer(tmp_path, options, [StopAt(crash)]).fit(train_of(), valid, epochs=3)
    resumed = dropout_trainer(tmp_path, options)
    resumed.fit(train_of(), valid, epochs=3, resume="auto")
    assert resumed.step == alone.step == {1: 60, 3: 21}[accumulate]
    assert_same(weights(alone.model), weights(resumed.model))
    assert numbers_of(alone) == numbers_of(resumed)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        record["step"] for record in alone.history
    ]


def test_a_crash_with_validation_by_steps_changes_nothing(tmp_path):
    options = replace(FULL, validate_every=5, save_every=5)
    train, valid = train_of(), dataset(500)
    left_alone = dropout_trainer(tmp_path / "a", options)
    left_alone.fit(train, valid, steps=33)
    with pytest.raises(ConnectionError):
        dropout_trainer(tmp_path / "b", options, [StopAt(18)]).fit(train_of(), valid, steps=33)
    resumed = dropout_trainer(tmp_path / "b", options)
    resumed.fit(train_of(), valid, steps=33, resume="auto")
    assert_same(weights(left_alone.model), weights(resumed.model))
    assert numbers_of(left_alone) == numbers_of(resumed)


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path):
    trainer = dropout_trainer(tmp_path / "a", PLAIN)
    trainer.fit(train_of(), epochs=1)
    before, records = weights(trainer.model), numbers_of(trainer)
    again = dropout_trainer(tmp_path / "a", PLAIN)
    again.fit(train_of(), epochs=1, resume="auto")
    assert again.step == 20
    assert_same(weights(again.model), before)
    assert numbers_of(again) == records


def test_a_finished_run_goes_on_with_more_epochs(tmp_path):
    options = replace(PLAIN, schedule=Schedule(), row_schedule=Schedule())
    left_alone = dropout_trainer(tmp_path / "a", options)
    left_alone.fit(train_of(), epochs=2)
    dropout_trainer(tmp_path / "b", options).fit(train_of(), epochs=1)
    more = dropout_trainer(tmp_path / "b", options)
    more.fit(train_of(), epochs=2, resume="auto")
    assert more.step == 40
    assert_same(weights(left_alone.model), weights(more.model))


def test_resume_auto_without_a_checkpoint_begins(tmp_path):
    trainer = dropout_trainer(tmp_path / "a", PLAIN)
    trainer.fit(train_of(), steps=3, resume="auto")
    assert trainer.step == 3


def test_resume_auto_without_a_checkpoint_says_that_the_run_begins(tmp_path, capsys):
    options = replace(PLAIN, progress="lines")
    dropout_trainer(tmp_path / "a", options).fit(train_of(), steps=3, resume="auto")
    assert f"nothing to resume in {tmp_path / 'a'}: no complete checkpoint is there" in capsys.readouterr().err


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def test_checkpoints_newer_than_the_one_resumed_from_are_set_aside(tmp_path, capsys):
    options = replace(PLAIN, save_every=5, keep=9)
    dropout_trainer(tmp_path / "a", options).fit(train_of(), steps=15)
    folder = tmp_path / "a" / "checkpoints"
    records = (tmp_path / "a" / "metrics.jsonl").read_text()
    assert names_in(folder) == ["step-000000005", "step-000000010", "step-000000015", "step-000000015-1"]

    cut = dropout_trainer(tmp_path / "a", replace(options, progress="lines"), [StopAt(8)])
    with pytest.raises(ConnectionError):  # before another checkpoint is there
        cut.fit(train_of(), steps=15, resume=folder / "step-000000005")
    assert f"are kept in {folder / 'set-aside-1'}; this run no longer uses them" in capsys.readouterr().err
    assert names_in(folder) == ["step-000000005"]
    assert names_in(folder / "set-aside-1") == ["step-000000010", "step-000000015", "step-000000015-1"]
    assert (folder / "set-aside-1" / "metrics.jsonl").read_text() == records

    again = dropout_trainer(tmp_path / "a", replace(options, progress="lines"))
    again.fit(train_of(), steps=7, resume="auto")
    assert "step-000000005, step 5" in capsys.readouterr().err
    assert names_in(folder) == ["step-000000005", "step-000000007"]


def test_a_checkpoint_of_another_run_is_taken_up_in_a_folder_of_its_own(tmp_path):
    dropout_trainer(tmp_path / "a", PLAIN).fit(train_of(), steps=7)
    options = replace(PLAIN, save_every=100)
    other = tmp_path / "a" / "checkpoints" / "step-000000007"
    with pytest.raises(ConnectionError):
        dropout_trainer(tmp_path / "b", options, [StopAt(9)]).fit(train_of(), steps=11, resume=other)
    assert (tmp_path / "b" / "config.json").exists()
    again = dropout_trainer(tmp_path / "b", options)
    again.fit(train_of(), steps=11, resume="auto")
    assert names_in(tmp_path / "b" / "checkpoints") == ["step-000000007", "step-000000011"]


def test_another_run_is_not_written_over(tmp_path):
    dropout_trainer(tmp_path / "a", PLAIN).fit(train_of(), steps=8)
    with pytest.raises(ValueError, match=r"holds a run already .*step-000000008.*resume='auto'"):
        dropout_trainer(tmp_path / "a", PLAIN).fit(train_of(), steps=8)


def test_resume_needs_a_folder():
    ds = train_of()
    with pytest.raises(ValueError, match="give the Trainer out="):
        trainer_of(ds).fit(ds, resume="auto")


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, capsys):
    class Press(Callback):
        def on_step(self, trainer, result):
            if trainer.step == 11:
                signal.raise_signal(signal.SIGINT)

    options = replace(PLAIN, progress="lines")
    left_alone = dropout_trainer(tmp_path / "a", PLAIN)
    left_alone.fit(train_of(), epochs=1)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted at step 11"):
        dropout_trainer(tmp_path / "b", options, [Press()]).fit(train_of(), epochs=1)
    assert "step-000000011 is saved; go on with fit(resume='auto')" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = dropout_trainer(tmp_path / "b", PLAIN)
    resumed.fit(train_of(), epochs=1, resume="auto")
    assert_same(weights(left_alone.model), weights(resumed.model))


def test_ctrl_c_during_a_validation_is_taken_up_with_that_validation(tmp_path):
    class Slow:
        """Validation data during whose iteration the signal comes."""

        def __init__(self, ds) -> None:
            self.ds, self.schema = ds, ds.schema

        def __iter__(self):
            for batch in self.ds:
                signal.raise_signal(signal.SIGINT)
                yield batch

    valid = dataset(500)
    left_alone = dropout_trainer(tmp_path / "a")
    left_alone.fit(train_of(), valid, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        dropout_trainer(tmp_path / "b").fit(train_of(), Slow(valid), epochs=2)
    resumed = dropout_trainer(tmp_path / "b")
    resumed.fit(train_of(), valid, epochs=2, resume="auto")
    assert_same(weights(left_alone.model), weights(resumed.model))
    assert numbers_of(left_alone) == numbers_of(resumed)


@pytest.mark.parametrize("accumulate", [1, 3, 30])
def test_ctrl_c_at_the_last_step_of_an_epoch_is_taken_up_with_the_next_epoch(tmp_path, accumulate):
    """Its batches may be fewer than a step wants: who asked for more found the data at the next epoch."""
    options, last = replace(PLAIN, accumulate=accumulate), -(-20 // accumulate)

    class AtLast(Callback):
        def on_step(self, trainer, result):
            if trainer.step == last:
                signal.raise_signal(signal.SIGINT)

    left_alone = dropout_trainer(tmp_path / "a", options)
    left_alone.fit(train_of(), epochs=2)
    with pytest.raises(KeyboardInterrupt):
        dropout_trainer(tmp_path / "b", options, [AtLast()]).fit(train_of(), epochs=2)
    resumed = dropout_trainer(tmp_path / "b", options)
    resumed.fit(train_of(), epochs=2, resume="auto")
    assert resumed.step == left_alone.step
    assert_same(weights(left_alone.model), weights(resumed.model))


def test_ctrl_c_after_the_last_validation_leaves_its_figures_to_the_final_record(tmp_path):
    class AtLast(Callback):
        def on_validate(self, trainer, metrics):
            if trainer.step == 10:
                signal.raise_signal(signal.SIGINT)

    valid, options = dataset(500), replace(FULL, validate_every=5)
    left_alone = dropout_trainer(tmp_path / "a", options)
    left_alone.fit(train_of(), valid, steps=10)
    with pytest.raises(KeyboardInterrupt):
        dropout_trainer(tmp_path / "b", options, [AtLast()]).fit(train_of(), valid, steps=10)
    resumed = dropout_trainer(tmp_path / "b", options)
    resumed.fit(train_of(), valid, steps=10, resume="auto")
    assert numbers_of(left_alone) == numbers_of(resumed)


class Dies(Callback):
    """Kills its process at any moment soon after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, trainer, result):
        if trainer.step == self.step:
            threading.Timer(0.05 * random.Random(self.step).random(), os.kill, (os.getpid(), signal.SIGKILL)).start()


PROGRAM = """
import sys
import torch
from hybridrec.train.seeds import seed_everything
from tests.train.test_resume import FULL, Dies, dataset, replace, dropout_trainer
torch.set_num_threads(1)
options = replace(FULL, save_every=10, deterministic=True)
trainer = dropout_trainer(sys.argv[1], options, [Dies(int(step)) for step in sys.argv[2:]])
ds = dataset(30_000, batch_size=100).shuffle(seed=3)
trainer.fit(ds, dataset(500), epochs=1, resume="auto")
"""


@pytest.mark.slow
def test_a_process_killed_at_random_steps_and_resumed_ends_bit_for_bit_as_one_left_alone(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[2]
    subprocess.run([*command, str(tmp_path / "a")], check=True, cwd=root, timeout=PATIENCE)
    for step in (5, 80, 150, 220):
        process = subprocess.run([*command, str(tmp_path / "b"), str(step)], cwd=root, timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL
    subprocess.run([*command, str(tmp_path / "b")], check=True, cwd=root, timeout=PATIENCE)

    found = []
    for name in "ab":
        trainer = dropout_trainer(tmp_path / name)
        trainer.fit(dataset(30_000, batch_size=100).shuffle(seed=3), dataset(500), epochs=1, resume="auto")
        assert trainer.step == 300
        found.append((weights(trainer.model), numbers_of(trainer)))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_a_run_that_another_process_trains_is_left_alone(tmp_path):
    trainer_of(dataset(), out=tmp_path).fit(dataset(), epochs=1)
    before = (tmp_path / "metrics.jsonl").read_text()
    hold = """if True:
        import sys
        from pathlib import Path
        from hybridrec.train.checkpoint.lock import held
        with held(Path(sys.argv[1])):
            print("held", flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OSError, match=r"another process trains into .*; give each run a folder of its own"):
            trainer_of(dataset(), out=tmp_path).fit(dataset(), epochs=2, resume="auto")
        other.communicate()
    assert (tmp_path / "metrics.jsonl").read_text() == before
    trainer_of(dataset(), out=tmp_path).fit(dataset(), epochs=2, resume="auto")


def test_a_fit_within_a_fit_of_the_same_folder_is_refused(tmp_path):
    class Again(Callback):
        def on_start(self, trainer):
            trainer_of(dataset(), out=tmp_path).fit(dataset(), resume="auto")

    with pytest.raises(OSError, match="another thread of this process trains into"):
        trainer_of(dataset(), out=tmp_path, callbacks=[Again()]).fit(dataset())
