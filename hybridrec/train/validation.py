"""Validation during a fit: when it is due, what it finds, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hybridrec.data.dataset import Dataset
from hybridrec.data.frame import check_alike, check_inputs, inputs_of
from hybridrec.data.schema import Schema
from hybridrec.remedy import remedied, within
from hybridrec.train.curves import Curves
from hybridrec.train.early_stopping import Watch
from hybridrec.train.evaluation import no_rows
from hybridrec.train.first_batch import comes_again, first_batch
from hybridrec.train.interruption import Interrupted
from hybridrec.train.locate import located
from hybridrec.train.together import share_of
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.train.fit import Fit


FIRST_ROWS = 8192  # that are looked at before training


class Validation:
    """Looks at the validation data of a fit, where it has some."""

    def __init__(self, fit: Fit, data: Any) -> None:
        self._fit, self.whole, self.data = fit, data, share_of(data, fit.ranks)
        self.found: dict[str, float] = {}  # by the last one
        self.new_best = False  # it is the best so far, and not saved yet
        self.watches: dict[str, Watch] = {}
        self._watch()

    def _watch(self) -> None:
        options, stopping = self._fit.options, self._fit.options.early_stopping
        if self.data is None:
            if stopping is not None:
                raise remedied(
                    ValueError,
                    "early_stopping needs data to look at",
                    call="pass validate= to fit()",
                    setting="name it with --valid",
                )
            return
        if stopping is not None:
            self.watches["early_stopping"] = Watch.of(stopping)
        usual = self._fit.trainer.main_metric(self._fit.train) if stopping is None else stopping.metric
        self.watches["best"] = Watch(options.best or usual, "auto" if stopping is None else stopping.mode)
        for watch in self.watches.values():
            self._check_metric(watch.metric)

    def _check_metric(self, name: str) -> None:
        """A metric that validation will not have is an error now; a callback may add one of its own."""
        if self._fit.trainer.callbacks.each:
            return
        metrics = self._fit.trainer.metrics_for(self._fit.train)
        valid = ["loss", *([] if metrics is None else metrics.compute())]
        if name not in valid:
            raise ValueError(f"no metric {name!r} in validation; it has {', '.join(valid)}")

    def check(self) -> None:
        """Read a first batch, so that data which cannot be validated on shows now and not after an epoch."""
        if self.whole is None or not comes_again(self.whole):
            return
        try:
            self._check_features(self.whole)
            with located(self.whole):
                self._check_first(self.whole)
        except ValueError as error:
            raise within("validation data", error) from error

    def _check_features(self, data: Any) -> None:
        """Refuse features that the model needs and does not find, or would find made in another way."""
        train, needed = self._fit.train, getattr(self._fit.trainer.model, "schema", None)
        if isinstance(data, Dataset) and isinstance(needed, Schema):
            check_inputs(inputs_of(needed), [feature.name for feature in data.schema])
        if isinstance(data, Dataset) and isinstance(train, Dataset):
            check_alike(data.schema, train.schema)

    def _check_first(self, data: Any) -> None:
        first = first_batch(data, FIRST_ROWS)
        if first is None:
            raise no_rows("there are no rows to evaluate on")
        self._fit.learner.loss.check_labels(first)

    def catch_up(self) -> None:
        """Validate where that is due: after so many steps, or at the end of an epoch."""
        every, state = self._fit.options.validate_every, self._fit.state
        if (state.epoch_steps == 0 if every is None else state.step % every == 0) and state.step > state.fit_step:
            self.run()

    def run(self) -> None:
        """Validate, unless that was done at this step, and stop early where the options say so."""
        fit, state = self._fit, self._fit.state
        if self.data is None or state.validated == state.step:
            return
        fit.learner.settle()
        with fit.window.paused():
            began = time.perf_counter()
            curves = Curves(fit.trainer.labels_of(fit.train)) if fit.learner.loss.high == 1 else None
            with located(self.data):
                self.found = fit.trainer.measured(self._watched(fresh(self.data)), fit.train, curves)
            state.validated = state.step
            if curves is not None and fit.ranks is not None:
                curves = curves.together(fit.ranks)
            drawn = {} if curves is None else {"calibration_curve": curves.to_json()}
            fit.record("valid", {**self.found, "seconds": time.perf_counter() - began, **drawn}, norms=True)
            fit.trainer.callbacks.call("on_validate", fit.trainer, self.found)
        self.new_best |= self.watches["best"].see(self.found)
        self._maybe_stop()
        fit.heed(now=True)

    def _maybe_stop(self) -> None:
        stopping, state = self._fit.options.early_stopping, self._fit.state
        if stopping is None:
            return
        watch = self.watches["early_stopping"]
        watch.see(self.found)
        if watch.since >= stopping.patience:
            best = "undefined" if watch.best is None else f"not better than {watch.best:.4f}"
            state.stopped = f"{watch.metric} was {best} in {watch.since} validations"

    def _watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, until a signal comes."""
        for batch in batches:
            self._fit.heed()
            if self._fit.signal is not None:
                raise Interrupted
            yield batch


def fresh(data: Any) -> Any:
    """The data from its first row on, in the same order each time, whoever else iterates it."""
    copy = data.batch(data.batch_size) if isinstance(data, Dataset) else data
    if hasattr(copy, "set_epoch"):
        copy.set_epoch(0)
    return copy
