"""How far a fit is, for people: a live display on a terminal, plain lines elsewhere, or nothing. All on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from hybridrec.train.history import numbers

LINES_EVERY = 10.0  # seconds between plain lines of training
SHOW_EVERY = 0.2  # seconds between two looks of the live display
INPUT_BOUND = 0.25  # share of the time spent waiting for data


class Display:
    """Shows nothing: the base of those that do."""

    def begin(self, step: int, total: int | None) -> None:
        """The fit begins at a step, of so many where that is known."""

    def step(self, step: int, rows: int) -> None:
        """So many steps and rows are done; called at every step."""

    def record(self, record: Mapping[str, Any]) -> None:
        """A record was written."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def end(self) -> None:
        """The fit is over."""


class Lines(Display):
    """A line for every validation, and one now and then for training."""

    def __init__(self) -> None:
        self._last = -LINES_EVERY
        self._total: int | None = None

    def begin(self, step: int, total: int | None) -> None:
        self._total = total

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            if time.monotonic() - self._last < LINES_EVERY:
                return
            self._last = time.monotonic()
        self.say(line_of(record, self._total))

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Live(Display):
    """A bar with speed, loss, AUC, time left, and what the run waits for. Validations stay as lines above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("[dim]{task.fields[bound]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=None, speed="", numbers="", bound="")
        self._shown: tuple[float, int] | None = None  # when, and rows then
        self._speed = ""
        self._began = False

    def begin(self, step: int, total: int | None) -> None:
        self._bar.reset(self._task, total=total, completed=step)
        self._bar.start()
        self._began = True

    def step(self, step: int, rows: int) -> None:
        now = time.monotonic()
        when, before = self._shown or (now, rows)
        if self._shown is None or now - when >= SHOW_EVERY:
            self._shown = (now, rows)
            if now > when:
                self._speed = f"{(rows - before) / (now - when):,.0f} samples/s"
            self._bar.update(self._task, completed=step, speed=self._speed)

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            shown = "  ".join(f"{name} {value:.4f}" for name, value in list(numbers(dict(record)).items())[:3])
            self._speed = f"{record['samples_per_s']:,.0f} samples/s"
            told = {"numbers": shown, "bound": bound(record), "speed": self._speed}
            self._bar.update(self._task, completed=record["step"], **told)  # pyright: ignore (fields of the columns)
        else:
            self.say(line_of(record, None))

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        if self._began:
            self._bar.stop()


def make_display(kind: str) -> Display:
    """The display of that kind; "auto" is live on a terminal and lines elsewhere.

    >>> type(make_display("none")).__name__
    'Display'
    """
    if kind == "none":
        return Display()
    return Live() if kind == "auto" and sys.stderr.isatty() else Lines()


def bound(record: Mapping[str, Any]) -> str:
    """Whether the run waits for data or for the model.

    >>> bound({"wait_share": 0.4})
    'input-bound (40 % waiting)'
    """
    share = record.get("wait_share") or 0.0
    kind = "input-bound" if share >= INPUT_BOUND else "compute-bound"
    return f"{kind} ({100 * share:.0f} % waiting)"


def line_of(record: Mapping[str, Any], total: int | None) -> str:
    """A record as one line.

    >>> line_of({"kind": "valid", "step": 20, "epoch": 0, "auc": 0.75}, 100)
    'valid  step 20 of 100  auc 0.7500'
    """
    words = [f"{record['kind']:<5}", f"step {record['step']:,}" + (f" of {total:,}" if total else "")]
    words += [f"{name} {value:.4f}" for name, value in numbers(dict(record)).items()]
    if record["kind"] == "train":
        words += [f"{record['samples_per_s']:,.0f} samples/s", bound(record)]
        if total and record.get("steps_per_s"):
            words.append(f"{_clock((total - record['step']) / record['steps_per_s'])} left")
    return "  ".join(words)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
