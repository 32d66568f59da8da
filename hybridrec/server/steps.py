"""Steps: which training lookups may be answered and which pushes applied. Rules alone: no rows, no network.

A trainer's step is one training lookup (or several, `part` 0, 1, …) and one push. With staleness s, the lookup of step
t waits until every trainer's pushes up to step t - 1 - s are applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Turn(Enum):
    """What is to be done with a push."""

    AGAIN = "again"  # it was applied before
    NOW = "now"
    EARLY = "early"  # after others


@dataclass
class Steps:
    """How far each trainer of a session has come.

    >>> steps = Steps(trainers=2, staleness=0)
    >>> steps.may_look(0), steps.may_look(1), steps.turn(0, step=1)
    (True, False, <Turn.EARLY: 'early'>)
    >>> steps.applied([(0, 0), (1, 0)])
    >>> steps.may_look(1), steps.turn(0, step=0)
    (True, <Turn.AGAIN: 'again'>)
    """

    trainers: int
    staleness: int
    pushed: list[int] = field(default_factory=list)  # of each trainer: the last step whose push is applied
    looked: list[tuple[int, int]] = field(default_factory=list)  # of each: the last training lookup, step and part
    observed: list[int] = field(default_factory=list)  # lookups by the pushes before them that they did not see

    def __post_init__(self) -> None:
        self.pushed = self.pushed or [-1] * self.trainers
        self.looked = self.looked or [(-1, 0)] * self.trainers
        self.observed = [0] * (self.staleness + 1)

    @property
    def most_waiting(self) -> int:
        """Lookups and pushes of one trainer that may wait here; more are refused."""
        return self.staleness + 2

    def may_look(self, step: int) -> bool:
        """Whether training lookups of this step may be answered."""
        return min(self.pushed) >= step - 1 - self.staleness

    def look(self, trainer: int, step: int, part: int) -> bool:
        """A training lookup is answered: whether it is for the first time, and so counts."""
        assert self.may_look(step), "a lookup is answered only when it may be"
        self.observed[max(0, step - 1 - min(self.pushed))] += 1
        if (step, part) <= self.looked[trainer] or step <= self.pushed[trainer]:
            return False
        self.looked[trainer] = step, part
        return True

    def turn(self, trainer: int, step: int) -> Turn:
        """What is to be done with a push."""
        if step <= self.pushed[trainer]:
            return Turn.AGAIN
        return Turn.NOW if step == self.pushed[trainer] + 1 else Turn.EARLY

    def due(self, kept: set[tuple[int, int]]) -> list[tuple[int, int]]:
        """Of pushes that are kept, by trainer and step: those that are one update, now; none if nothing is due.

        Without staleness all trainers' pushes of a step are one; with it each is.
        """
        following = [(trainer, self.pushed[trainer] + 1) for trainer in range(self.trainers)]
        if self.staleness == 0:
            return following if kept.issuperset(following) else []
        return next(([push] for push in following if push in kept), [])

    def applied(self, pushes: list[tuple[int, int]]) -> None:
        """These pushes are applied."""
        for trainer, step in pushes:
            assert step == self.pushed[trainer] + 1, "pushes of a trainer are applied in order"
            self.pushed[trainer] = step
