"""One call of `Trainer.fit`: epochs of steps, and what is due between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hybridrec.parallel.watch import RankFailure
from hybridrec.remedy import remedied
from hybridrec.server.errors import ServerLost
from hybridrec.train.accord import Accord, Wishes
from hybridrec.train.agreement import agree
from hybridrec.train.checkpoint.lock import held
from hybridrec.train.evaluation import no_rows
from hybridrec.train.full_card import full_card
from hybridrec.train.heap import keep_freed_memory
from hybridrec.train.history import Record
from hybridrec.train.interruption import Interrupted, Interruption
from hybridrec.train.late_records import LATE, LateRecords
from hybridrec.train.locate import located
from hybridrec.train.observed_staleness import ObservedStaleness
from hybridrec.train.placed import Placed
from hybridrec.train.progress import make_display
from hybridrec.train.saving import Saver, resume_command
from hybridrec.train.schedules import make_scheduler
from hybridrec.train.seeds import determinism, seed_everything, tf32_matmul
from hybridrec.train.step import StepResult, grouped, train_step
from hybridrec.train.table_figures import TableFigures
from hybridrec.train.together import inside, on_main, path_on_main, share_of
from hybridrec.train.training_data import TrainingData
from hybridrec.train.validation import Validation
from hybridrec.train.window import Window
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.train.trainer import Trainer

log = logging.getLogger("hybridrec.train")


class Fit:
    """The state and the course of one fit."""

    def __init__(self, trainer: Trainer, train: Any, validate: Any, epochs: int | None, steps: int | None) -> None:
        self.trainer, self.ranks = trainer, trainer.learner.ranks
        self.train = train = share_of(train, self.ranks)
        self.epochs, self.steps = (1 if epochs is None and steps is None else epochs), steps
        self.state, self.options, self.learner = trainer.state, trainer.options, trainer.learner
        self.data = TrainingData(train, self.learner, self.options.accumulate)
        self.window = Window(self.learner, trainer.metrics_for(train))
        self.schedulers: dict[str, Any] = {}
        self.display = make_display(self.options.progress if trainer.is_main else "none")
        self.interruption = Interruption(launched=self.ranks is not None)
        self.signal: int | None = None  # that ends the fit, agreed by all ranks
        self._accord = None if self.ranks is None else Accord(self.ranks)
        self._counted, self._uncounted = 0, 0  # rows of all ranks at the last count, and this rank's since
        self._late = LateRecords(self._keep)
        self.saver = Saver(self)
        self._figures = TableFigures(inside(trainer.model), self.ranks)
        self._staleness = ObservedStaleness(trainer.model) if trainer.is_main else None
        self.validation = Validation(self, validate)

    # -- from beginning to end ------------------------------------------------------------------------------

    def run(self, resume: str | Path | None) -> None:
        """Train until epochs, steps, early stopping or a signal end it."""
        keep_freed_memory()
        try:
            with self.trainer.guarded(), ExitStack() as stack:
                agree(self)
                on_main(self.ranks, lambda: self._check(stack))
                self._begin(resume)
                self._train()
        except RankFailure as error:
            raise RankFailure(f"{error}. {self._how_to_go_on()}") from error
        except ServerLost as error:
            latest = self.saver.settled()
            lost = self.saver.steps_since(latest)
            raise error.resumable(None if latest is None else str(latest), lost) from error

    def _train(self) -> None:
        trainer = self.trainer
        self._log_every = self.options.log_every or usual_log_every(self.total())
        tf32 = self.options.tf32 and self.learner.device is not None
        with determinism(self.options.deterministic), tf32_matmul(tf32), self.saver, self.interruption:
            try:
                self.display.begin(self.state.step, self._last_step())
                self._until_interrupted()
            except FloatingPointError as error:
                step = self.state.step + 1 - getattr(error, "late", 0)
                self._late.forget(step)  # they have that loss among their own
                raise FloatingPointError(f"step {step}: {error}. {self._last_saved()}") from error
            except torch.OutOfMemoryError as error:
                said = f"step {self.state.step + 1}: {full_card(self.learner, error)}"
                raise torch.OutOfMemoryError(f"{said}. {self._last_saved()}") from error
            finally:
                self._late.close()
                self.data.close()
                self.display.end()
                trainer.callbacks.call("on_end", trainer)

    def _until_interrupted(self) -> None:
        try:
            with self.trainer.guarded():
                self.trainer.callbacks.call("on_start", self.trainer)
                self._course()
        except Interrupted:
            self._interrupted()

    def _check(self, stack: ExitStack) -> None:
        """What can be known before anything is written; then the folder is this run's, until the stack is left."""
        run = self.trainer.run
        if run is not None:
            run.check_place()
        self.validation.check()
        if run is not None:
            run.prepare()
            stack.enter_context(held(run.path))

    def _begin(self, resume: str | Path | None) -> None:
        trainer, options = self.trainer, self.options
        total = self.total()
        for name, optimizer in (("schedule", self.learner.dense), ("row_schedule", self.learner.rows)):
            made = make_scheduler(optimizer, getattr(options, name), total, name)
            if made is not None:
                self.schedulers[name] = made
        found = path_on_main(self.ranks, lambda: self._checkpoint(resume))
        if (served := getattr(trainer.model, "served", None)) is not None:
            self._say(served.told)
        if found is not None:
            self._go_on(found)
        else:
            if resume is not None:
                assert trainer.run is not None, "a fit without a folder has nothing to resume"
                folder = trainer.run.path
                self._say(f"nothing to resume in {folder}: no complete checkpoint is there; the run begins anew")
            self.state.begin()
            if options.seed is not None:
                seed_everything(options.seed + (0 if self.ranks is None else self.ranks.rank))
        self._counted = self.state.rows
        trainer.describe_run(self)

    def _go_on(self, found: Path) -> None:
        """Take up a checkpoint. Those that were written after it are of another line, and are set aside."""
        self.saver.resume(found)
        aside = self.saver.set_others_aside(found)
        self.trainer.take_up_records()
        self._say(f"resumed from {found}, step {self.state.step:,}")
        if aside is not None:
            self._say(f"checkpoints that were written after it are kept in {aside}; this run no longer uses them")

    def _say(self, text: str) -> None:
        log.info(text)
        self.display.say(text)

    def _checkpoint(self, resume: str | Path | None) -> Path | None:
        """The checkpoint to go on from. A folder that holds another run is not written over."""
        latest = self.saver.latest()
        if resume is None:
            if latest is not None and self.state.step == 0:
                raise remedied(
                    ValueError,
                    f"{latest.parent.parent} holds a run already (its newest checkpoint is {latest.name})",
                    call="go on with fit(resume='auto'), or give another folder as out=",
                    setting="go on with --resume, or give another folder as --out",
                )
            return None
        if resume != "auto":
            return Path(resume)
        if self.trainer.run is None:
            raise ValueError("resume='auto' looks for checkpoints in the folder of the run; give the Trainer out=")
        return latest

    def total(self) -> int | None:
        """The steps of the whole fit, where they are known."""
        try:
            each = -(-len(self.train) // self.options.accumulate)
        except TypeError:
            return self.steps
        by_epochs = None if self.epochs is None else each * self.epochs
        known = [count for count in (by_epochs, self.steps) if count is not None]
        return min(known)

    def _last_step(self) -> int | None:
        total = self.total()
        return None if total is None else self.state.fit_step + total

    def _course(self) -> None:
        self.trainer.model.train()
        self.validation.catch_up()
        self.heed(now=True)
        if not self._over():
            self.state.finished = False
        while not self._over():
            self._epoch()
        self.data.close()  # what was begun of an epoch that does not come
        self._finish()

    def _over(self) -> bool:
        state = self.state
        if self.ranks is None:
            self.heed()
        by_steps = self.steps is not None and state.step - state.fit_step >= self.steps
        by_epochs = self.epochs is not None and state.epoch - state.fit_epoch >= self.epochs
        return by_steps or by_epochs or state.stopped is not None

    # -- an epoch -------------------------------------------------------------------------------------------

    def _epoch(self) -> None:
        state = self.state
        batches, another = self.data.epoch(None if state.epoch_steps else state.epoch), self._another_epoch()
        reads_ahead, begins = another, another and not self.trainer.callbacks.at_epochs  # who may read the data too
        try:
            with located(self.train):
                for group in grouped(batches, self.options.accumulate, self.learner.stages):
                    self._step(group)
                    if self._over():
                        return
                    if reads_ahead:
                        self.data.read_ahead()
                        reads_ahead = False
                    if begins:
                        self.data.begin(state.epoch + 1)
        finally:
            getattr(batches, "close", lambda: None)()
        if not state.epoch_steps:
            raise no_rows(f"epoch {state.epoch} has no rows")
        if begins:
            self.data.begin(state.epoch + 1)
        self._end_epoch()

    def _another_epoch(self) -> bool:
        """Whether one comes after this, as far as is known."""
        state = self.state
        if self.epochs is not None and state.epoch + 1 - state.fit_epoch >= self.epochs:
            return False
        if self.steps is None:
            return True
        try:
            left = -(-len(self.train) // self.options.accumulate) - state.epoch_steps
        except TypeError:
            return True
        return state.step - state.fit_step + left < self.steps

    def _step(self, group: list[Batch | Placed]) -> None:
        state = self.state
        if self.ranks is not None and self.ranks.watch is not None:
            self.ranks.watch.step = state.step + 1
        result = train_step(self.learner, group)
        self._late.write(until=self.state.step - LATE)
        for scheduler in self.schedulers.values():
            scheduler.step()
        state.step, state.epoch_steps = state.step + 1, state.epoch_steps + 1
        self._uncounted += result.rows
        state.rows = self._counted + self._uncounted * (1 if self.ranks is None else self.ranks.world)
        self.window.add(result)
        self._after(result)

    def _after(self, result: StepResult) -> None:
        """What is due after a step, in this order: record, callbacks, validation, checkpoint.

        Where steps are replayed on a GPU, a record comes some steps later, or before whatever else is recorded or
        saved: the GPU would stand still until it is written.
        """
        state = self.state
        if state.step % self._log_every == 0:
            self._end_window()
        self.trainer.callbacks.on_step(self.trainer, result)
        self.validation.catch_up()
        overdue = self.heed().save
        if self.validation.new_best or self.saver.due() or overdue:
            self._save()
        self.display.step(state.step, state.rows)
        if self.signal is not None:
            raise Interrupted

    def heed(self, now: bool = False) -> Wishes:
        """Take note of what this process wishes; of many ranks, what all agree on, `now` or when it is time."""
        wishes = self._wishes() if self._accord is None else self._accord.reach(self._wishes, now)
        self.signal = self.signal or wishes.signal
        if wishes.stop is not None:
            self.state.stopped, self.trainer.stop_reason = wishes.stop, None
        return wishes

    def _wishes(self) -> Wishes:
        return Wishes(self.interruption.number, self.trainer.stop_reason, self.saver.overdue())

    def _end_epoch(self) -> None:
        state = self.state
        if self.window.steps:
            self._end_window()
        if self.trainer.callbacks.at_epochs:
            self.learner.settle()
            self._late.write()
        state.epoch, state.epoch_steps = state.epoch + 1, 0
        self.data.epoch_is_done()
        self.trainer.callbacks.call("on_epoch", self.trainer)
        self.heed(now=True)
        self.validation.catch_up()
        if not self._over() and self.trainer.run is not None:
            self._save()

    def _end_window(self) -> None:
        """The record of a window, now, or where steps are replayed on a GPU some steps later."""
        if self.learner.graphs is None:
            return self._record_window()
        figures = partial(self.window.figures, self.window.close())
        self._late.add(self._described("train"), figures)
        return None

    def _record_window(self) -> None:
        self.learner.settle()
        self._count_rows()
        self.record("train", self.window.take())

    def _count_rows(self) -> None:
        """The rows of all ranks; between two counts they are estimated."""
        if self.ranks is not None:
            self._counted += int(self.ranks.sum(torch.tensor([self._uncounted]))[0])
            self._uncounted, self.state.rows = 0, self._counted

    def _save(self, wait: bool = False) -> None:
        self.learner.settle()
        self._late.write()
        self._count_rows()
        with self.window.paused():
            self.saver.save(self.validation.found, best=self.validation.new_best, wait=wait)
        self.validation.new_best = False

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        state, trainer = self.state, self.trainer
        if state.finished:
            return  # a resumed run that had come to its end
        self.learner.settle()
        if self.window.steps:
            self._record_window()
        self.validation.run()
        state.finished = True
        ended = {"reason": state.stopped} if state.stopped else {}
        self.record("final", {**self.validation.found, "rows": state.rows, **ended}, norms=True)
        if state.stopped:
            self.display.say(f"stopped at step {state.step:,}: {state.stopped}")
        self._save(wait=True)
        stopping = self.options.early_stopping
        if stopping is not None and stopping.restore_best and self.saver.load_best():
            self.display.say("the model has the weights of the best validation")
        trainer.write_report()

    def _interrupted(self) -> None:
        self._save(wait=True)
        self.trainer.write_report()
        self.display.end()
        message = f"interrupted at step {self.state.step:,}. {self._last_saved()}"
        self.display.say(message)
        self.interruption.number = self.signal
        self.interruption.reraise(message)

    def _last_saved(self) -> str:
        latest = self.saver.settled()
        if latest is None:
            return "Nothing was saved" + (": the Trainer has no out=" if self.trainer.run is None else "")
        return f"{latest} is saved; {self._how_to_go_on()}"

    def _how_to_go_on(self) -> str:
        if self.trainer.run is None:
            return "Nothing was saved: the Trainer has no out="
        by_command = "run" in self.trainer.about  # see launch.py
        how = resume_command(self.trainer) if by_command else "fit(resume='auto')"
        return f"go on with {how}"

    def record(self, kind: str, values: Mapping[str, Any], norms: bool = False) -> None:
        """Write one more record, show it, and tell the callbacks."""
        self._late.write()
        self._keep(self._described(kind, norms), values)

    def _described(self, kind: str, norms: bool = False) -> Record:
        """A record of this moment, without the figures of its kind."""
        state, learner = self.state, self.learner
        record: Record = {"kind": kind, "step": state.step, "epoch": state.epoch, "time": time.time()}
        if kind == "train":
            for name, optimizer in (("lr", learner.dense), ("row_lr", learner.rows)):
                if optimizer is not None:
                    record[name] = float(optimizer.param_groups[0]["lr"])
            record |= {} if self._staleness is None else self._staleness.take()
        return {**record, "tables": self._figures.take(norms)}

    def _keep(self, described: Record, values: Mapping[str, Any]) -> None:
        tables = described.pop("tables")  # come last, for readers
        record = {**described, **values, "tables": tables}
        self.state.records += 1
        self.trainer.keep_record(record)
        self.display.record(record)
        self.trainer.callbacks.call("on_record", self.trainer, record)


def usual_log_every(steps: int | None) -> int:
    """Steps between records, where nobody says otherwise: about fifty records in all.

    >>> [usual_log_every(steps) for steps in (50, 1000, 10**6, None)]
    [10, 20, 100, 100]
    """
    return 100 if steps is None else min(max(steps // 50, 10), 100)
