"""Where the time of a step goes: one clock that is always in exactly one stage."""

from __future__ import annotations

from time import perf_counter

STAGES: tuple[str, ...] = ("data", "forward", "backward", "step", "metrics", "other")


class Stages:
    """Seconds by stage. `enter(name)` ends the stage before and begins another, at the cost of two dict entries.

    On a GPU kernels run on after the call that started them: their time shows in the stage that waits for them.

    >>> stages = Stages()
    >>> stages.enter("data"); stages.enter("forward"); stages.enter("other")
    >>> sorted(stages.take())
    ['backward', 'data', 'forward', 'metrics', 'other', 'step']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._now = "other"
        self._since = perf_counter()

    def enter(self, name: str) -> None:
        """The stage that runs from here on."""
        at = perf_counter()
        self.seconds[self._now] += at - self._since
        self._now, self._since = name, at

    def skip(self) -> None:
        """Leave out the time since the last change of stage."""
        self._since = perf_counter()

    def take(self) -> dict[str, float]:
        """The seconds since the last take, and begin anew."""
        self.enter(self._now)
        taken, self.seconds = self.seconds, dict.fromkeys(STAGES, 0.0)
        return taken


def wait_share(seconds: dict[str, float]) -> float:
    """The share of the time spent waiting for data.

    >>> wait_share({"data": 1.0, "forward": 2.0, "step": 1.0})
    0.25
    """
    total = sum(seconds.values())
    return seconds.get("data", 0.0) / total if total > 0 else 0.0
