"""What can be chosen about a run beside model, data, optimizers, loss and metrics: frozen values, checked when made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hybridrec.remedy import remedied

MODES = ("auto", "max", "min")
SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")


def checked(where: str, values: Mapping[str, Any], valid: Sequence[str]) -> Mapping[str, Any]:
    """The values, if all their names are valid.

    >>> checked("train", {"epoch": 1}, ["epochs", "steps"])
    Traceback (most recent call last):
    ValueError: train has no option 'epoch'; valid are epochs, steps
    """
    if unknown := [name for name in values if name not in valid]:
        raise ValueError(f"{where} has no option {', '.join(map(repr, unknown))}; valid are {', '.join(valid)}")
    return values


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} on")


def _number(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise ValueError(f"{name} is {value!r}; it must be a number from 0 on")


def _one_of(name: str, value: Any, valid: Sequence[str]) -> None:
    if value not in valid:
        raise ValueError(f"{name} is {value!r}; valid are {', '.join(valid)}")


@dataclass(frozen=True)
class Schedule:
    """A learning rate over the steps: up from 0 over `warmup` steps, then along a curve down to `end` of its value.

    `steps` is the length of the whole; None takes that of the fit. "inverse_sqrt" falls with the square root of the
    steps since the warmup.

    >>> Schedule("cosine", warmup=100)
    Schedule(kind='cosine', warmup=100, end=0.0, steps=None)
    """

    kind: str = "constant"
    warmup: int = 0
    end: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        _one_of("Schedule.kind", self.kind, SCHEDULES)
        _whole("Schedule.warmup", self.warmup, 0)
        _number("Schedule.end", self.end)
        if self.steps is not None:
            _whole("Schedule.steps", self.steps, 1)


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a metric of validation has not got better by `min_delta` for `patience` validations in a row.

    `mode` says which way is better; "auto" knows it for the metrics of hybridrec. `restore_best` ends with the weights
    of the best validation in place of the last ones (needs a run directory).
    """

    metric: str = "auc"
    patience: int = 3
    min_delta: float = 0.0
    mode: str = "auto"
    restore_best: bool = False

    def __post_init__(self) -> None:
        _one_of("EarlyStopping.mode", self.mode, MODES)
        _whole("EarlyStopping.patience", self.patience, 1)
        _number("EarlyStopping.min_delta", self.min_delta)


@dataclass(frozen=True)
class TrainOptions:
    """How a run trains, tells and saves.

    | | |
    | --- | --- |
    | `clip_norm` | bound of the gradients' norm, layers and rows together |
    | `accumulate` | batches per step: as one batch of all their rows |
    | `bf16` | layers compute in bfloat16 (autocast); weights stay float32 |
    | `tf32` | on a GPU, float32 matrices are multiplied in TF32: several times faster, 3 digits |
    | `graphs` | on a GPU, steps are replayed as CUDA graphs; None: with models and losses of hybridrec |
    | `compile` | torch.compile the model; a string names the backend |
    | `schedule`, `row_schedule` | learning rates of layers and of rows |
    | `label_weights` | weight of each label's loss, by name |
    | `seed`, `deterministic` | see `hybridrec.train.seeds`; seed None leaves the generators alone |
    | `log_every` | steps between records in metrics.jsonl; None: about fifty in a fit, 10 to 100 steps apart |
    | `validate_every` | steps between validations; None: at the end of each epoch |
    | `save_every`, `save_minutes` | steps, and minutes, between checkpoints; always one at the end |
    | `keep` | checkpoints kept beside the best |
    | `early_stopping` | when to stop before the end |
    | `best` | the metric of validation whose best checkpoint is kept; None: that of early_stopping, else the first |
    | `progress` | "auto" (a display on a terminal, lines elsewhere), "lines", "none" |
    | `tensorboard` | write TensorBoard events too |
    | `timeout` | of many ranks: seconds that one waits for another before all of them end |

    >>> TrainOptions(clip_norm=1.0).to_json()["clip_norm"]
    1.0
    """

    clip_norm: float | None = None
    accumulate: int = 1
    bf16: bool = False
    tf32: bool = False
    graphs: bool | None = None
    compile: bool | str = False
    schedule: Schedule = Schedule()
    row_schedule: Schedule = Schedule()
    label_weights: Mapping[str, float] | None = field(default=None, hash=False)
    seed: int | None = 0
    deterministic: bool = False
    log_every: int | None = None
    validate_every: int | None = None
    save_every: int | None = None
    save_minutes: float = 10.0
    keep: int = 3
    early_stopping: EarlyStopping | None = None
    best: str | None = None
    progress: str = "auto"
    tensorboard: bool = False
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("accumulate", "log_every", "keep", "validate_every", "save_every"):
            if getattr(self, name) is not None:
                _whole(f"TrainOptions.{name}", getattr(self, name), 1)
        for name in ("bf16", "tf32", "graphs", "deterministic", "tensorboard"):
            if not isinstance(getattr(self, name), bool) and (name, getattr(self, name)) != ("graphs", None):
                raise ValueError(f"TrainOptions.{name} is {getattr(self, name)!r}; it must be true or false")
        for name in ("clip_norm", "save_minutes", "timeout"):
            if getattr(self, name) is not None:
                _number(f"TrainOptions.{name}", getattr(self, name))
        if not isinstance(self.label_weights, Mapping | None):
            raise ValueError(f"TrainOptions.label_weights is {self.label_weights!r}; it must name a weight per label")
        for name, value in (("schedule", self.schedule), ("row_schedule", self.row_schedule)):
            if not isinstance(value, Schedule):
                raise ValueError(f"TrainOptions.{name} is {value!r}; it must be a Schedule, such as Schedule('cosine')")
        if self.seed is not None:
            _whole("TrainOptions.seed", self.seed, 0)
        if not isinstance(self.early_stopping, EarlyStopping | None):
            raise remedied(
                ValueError,
                f"TrainOptions.early_stopping is {self.early_stopping!r}",
                call="it must be an EarlyStopping, such as EarlyStopping('auc', patience=2)",
                setting="name a metric and a patience: train.early_stopping.metric=auc train.early_stopping.patience=2",
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"TrainOptions.clip_norm is {self.clip_norm!r}; it must be above 0, or None")
        for name in ("save_minutes", "timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"TrainOptions.{name} is {getattr(self, name)!r}; it must be above 0")
        _one_of("TrainOptions.progress", self.progress, ("auto", "lines", "none"))
        for name, value in (self.label_weights or {}).items():
            _number(f"TrainOptions.label_weights[{name!r}]", value)

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same options."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> TrainOptions:
        """Options from plain values; an unknown name is an error that lists the valid ones."""
        known = dict(checked("train", values, [each.name for each in fields(TrainOptions)]))
        for name, kind in (("schedule", Schedule), ("row_schedule", Schedule), ("early_stopping", EarlyStopping)):
            if isinstance(known.get(name), str) and kind is Schedule:
                known[name] = Schedule(known[name])
            elif isinstance(known.get(name), Mapping):
                valid = [each.name for each in fields(kind)]
                known[name] = kind(**checked(f"train.{name}", known[name], valid))
        return TrainOptions(**known)
