"""A program that trains on many ranks, one of which fails in some way at some step.

python -m tests.train.one_rank OUT HOW RANK [TIMEOUT]: at step 20 the rank does what HOW says, unless OUT has a file
`failed` by then: so a program that is started again goes through.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (what making an optimizer loads; here, before ranks wait for each other)

import hybridrec as hr
from hybridrec.parallel.answer import Answers
from hybridrec.parallel.ranks import ranks
from hybridrec.parallel.watch import RankFailure
from hybridrec.train import Callback, Trainer
from tests.patience import PATIENCE
from tests.train.clicks import QUIET
from tests.train.ranked import data_of, model_of
from tests.train.started import meet

STEP = 20


def lost_rows(*_: Any) -> None:
    """A lookup for all ranks, of rows that cannot be read any more."""
    raise OSError(errno.EIO, "rows could not be read")


class Fail(Callback):
    """Does something bad on one rank, once."""

    def __init__(self, out: Path, how: str, rank: int) -> None:
        self.mark, self.how, self.rank = out / "failed", how, rank

    def on_step(self, trainer: Trainer, result: Any) -> None:
        mine = ranks()
        assert mine is not None
        if self.how == "wait" and trainer.step == STEP and mine.rank == self.rank:
            self.mark.with_name("waits").touch()
        if self.how == "wait" and trainer.step > STEP:
            time.sleep(0.01)
        if trainer.step != STEP or mine.rank != self.rank or self.mark.exists():
            return
        if self.how != "wait":
            self.mark.touch()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.how == "raise":
            raise KeyError("nobody knows")
        if self.how == "sleep":
            time.sleep(1000)
        if self.how == "lookup":
            Answers.look_up = lost_rows  # type: ignore[method-assign]


def main(out: str, how: str, rank: str, timeout: str = str(PATIENCE)) -> None:
    folder = Path(out)
    ds = data_of(2000, 20)
    options = replace(QUIET, save_every=5, timeout=float(timeout))
    meet(folder)
    hr.init(timeout=float(timeout))
    mine = ranks()
    assert mine is not None
    if how == "nan" and mine.rank == int(rank):
        ds = ds.with_schema(ds.schema)
    try:
        loss = nan_at(STEP) if how == "nan" and mine.rank == int(rank) else "bce"
        trainer = Trainer(
            model_of(ds, "deepfm"),
            out=folder / "run",
            loss=loss,
            callbacks=[Fail(folder, how, int(rank))],
            options=options,
        )
        trainer.fit(ds, epochs=10_000 if how == "wait" else 2, resume="auto")
    except (RankFailure, KeyError, OSError, FloatingPointError) as error:
        print(f"rank {mine.rank}: {type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    if mine.rank == 0:
        print(f"done at step {trainer.step}, row {trainer.state.rows}", flush=True)


def nan_at(step: int) -> Any:
    """A loss of the usual name that is no number once."""
    from hybridrec.train.losses import LOSSES, Loss

    calls = 0

    def function(outputs: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return LOSSES["bce"](outputs, batch) * (float("nan") if calls == step else 1.0)

    return Loss("bce", function, low=0, high=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
