"""Search: which choice and which devices each table gets. Greedy first, then moves that make the slowest device faster.

It is deterministic: it counts its moves and never looks at a clock. Where devices are few, every set of them is tried;
else the least loaded ones with room. A placement is better if its slowest device is faster, or as fast with less load
in all (the sum of squares, which also evens the others out).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, inf
from typing import NamedTuple

import numpy as np

from hybridrec.parallel import cost
from hybridrec.parallel.choices import Choice
from hybridrec.parallel.plan import SCHEMES

FEW = 64  # device sets of a table that are all tried
PAIRS = 40_000  # pairs of options that are tried together
PAIRED = 12  # tables of which pairs are tried
UNFIT = 1e6  # seconds, from which on a score means that something does not fit
SMALL = 512  # tables x devices up to which every table is tried
ROUNDS = 400  # moves of the local improvement
TRIED = 6  # tables of the slowest device that are tried in each, where there are many


class Option(NamedTuple):
    """A choice on these devices."""

    choice: Choice
    devices: tuple[int, ...]


class Tried(NamedTuple):
    """Options, and for each: seconds of the slowest device (UNFIT: no room), their mean and squares, fullest device."""

    options: list[Option]
    slowest: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    fullest: np.ndarray


class Search:
    """The search over the choices of all tables, within the room of each device and each device's share of its host."""

    def __init__(self, choices: Sequence[Sequence[Choice]], step: cost.Step, room: float, host_room: float) -> None:
        self.choices, self.step, self.world = choices, step, step.world
        self.room, self.host_room = room, host_room
        few = [sum(_sets(each, self.world) for each in of_table) <= FEW for of_table in choices]
        self.all: list[list[Option] | None] = [
            [Option(each, devices) for each in of_table for devices in each.all_devices(self.world)] if small else None
            for of_table, small in zip(choices, few, strict=True)
        ]
        self.loads = [None if each is None else np.stack([self.load(o) for o in each]) for each in self.all]

    def load(self, option: Option) -> np.ndarray:
        return option.choice.placed(option.devices, self.world)

    def total(self, options: Sequence[Option]) -> np.ndarray:
        """What a whole placement asks of every device: [quantity, device]."""
        made = np.zeros((cost.QUANTITIES, self.world))
        for option in options:
            made += option.choice.everyone[:, None]
            made[:, list(option.devices)] += option.choice.holders.T
        return made

    def fits(self, totals: np.ndarray) -> np.ndarray:
        """Whether no device has more than its room: [...] of [..., quantity, device]."""
        return (totals[..., cost.ROOM, :].max(-1) <= self.room) & (
            totals[..., cost.HOST_ROOM, :].max(-1) <= self.host_room
        )

    def tried(self, table: int, total: np.ndarray) -> Tried:
        """The options of a table beside what is placed already, and what they would make of it."""
        known, loads = self.all[table], self.loads[table]
        if known is not None and loads is not None:
            return self._told(known, total + loads)
        found = [self._least_loaded(each, total) for each in self.choices[table]]
        parts = [self._told([option], self._with(option, total)[None]) for option in found]
        return Tried(found, *(np.concatenate(part) for part in list(zip(*parts, strict=True))[1:]))

    def _told(self, options: list[Option], totals: np.ndarray) -> Tried:
        times = cost.seconds(totals, self.step)
        slowest, squares = times.max(-1), np.einsum("...d,...d->...", times, times)
        return Tried(options, self._priced(totals, slowest), times.mean(-1), squares, self._fullest(totals))

    def _priced(self, totals: np.ndarray, slowest: np.ndarray) -> np.ndarray:
        """The seconds, or for what does not fit more than any, and the more the more bytes are too many."""
        over = np.maximum(totals[..., cost.ROOM, :] - self.room, 0).sum(-1)
        over += np.maximum(totals[..., cost.HOST_ROOM, :] - self.host_room, 0).sum(-1)
        return np.where(over > 0, UNFIT * (1 + over / self.room), slowest)

    def _with(self, option: Option, total: np.ndarray) -> np.ndarray:
        made = total + option.choice.everyone[:, None]
        made[:, list(option.devices)] += option.choice.holders.T
        return made

    def _least_loaded(self, choice: Choice, total: np.ndarray) -> Option:
        if choice.fixed is not None:
            return Option(choice, choice.fixed)
        after = total + (choice.everyone + choice.holders[0])[:, None]
        times = self._priced(after.T[:, :, None], cost.seconds(after, self.step))  # each device alone
        if choice.count == 1:
            return Option(choice, (int(times.argmin()),))
        return Option(choice, tuple(int(d) for d in np.argsort(times, kind="stable")[: choice.count]))

    # -- greedy -------------------------------------------------------------------------------------------

    def greedy(self, order: Sequence[int], schemes: Sequence[str] = SCHEMES, by_room: bool = False) -> list[Option]:
        """Tables one after the other, each where the whole seems to end earliest; where none fits, by the fewest bytes
        too many, for `improve` to mend.

        A device is not too slow while it is below the mean that all tables together will reach. With `by_room`, the
        fullest device decides instead. Where one of the `schemes` fits a table, it gets no other.
        """
        chosen: dict[int, Option] = {}
        total = np.zeros((cost.QUANTITIES, self.world))
        least = [min(each.work for each in of_table) / self.world for of_table in self.choices]
        rest = sum(least)
        for table in order:
            rest -= least[table]
            tried = self.tried(table, total)
            usable = tried.slowest < UNFIT
            wanted = usable & [option.choice.scheme in schemes for option in tried.options]
            first = tried.fullest if by_room else np.maximum(tried.slowest, tried.mean + rest)
            first = np.where(wanted if wanted.any() else usable, first, inf) if usable.any() else tried.slowest
            chosen[table] = tried.options[_best(first, tried.mean)]
            total = self._with(chosen[table], total)
        return [chosen[table] for table in range(len(self.choices))]

    def _fullest(self, totals: np.ndarray) -> np.ndarray:
        used = totals[..., cost.ROOM, :].max(-1) / self.room
        return used if not self.host_room else np.maximum(used, totals[..., cost.HOST_ROOM, :].max(-1) / self.host_room)

    # -- improvement --------------------------------------------------------------------------------------

    def score(self, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slowest, sum of squares) of totals [..., quantity, device]; from UNFIT on where they do not fit."""
        times = cost.seconds(totals, self.step)
        return self._priced(totals, times.max(-1)), np.square(times).sum(-1)

    def improve(self, options: list[Option], thorough: bool = False) -> list[Option]:
        """Move tables, one or two at a time, while that is better. Bytes are whole numbers: their sums stay exact.

        If it is `thorough`, tables change places too, which takes longer.
        """
        current, total = list(options), self.total(options)
        for _ in range(ROUNDS):
            moved = False
            for table in self._worth_moving(current, total):
                without = total - self.load(current[table])
                if (better := self._better_place(table, without, self.score(total))) is not None:
                    current[table], total, moved = better, self._with(better, without), True
            found = None if moved else self._pair(current, total)
            if not moved and thorough and found is None:
                found = self._exchange(current, total)
            if found is not None:
                for table, option in found:
                    current[table] = option
                total, moved = self.total(current), True
            if not moved:
                break
        return current

    def _better_place(self, table: int, without: np.ndarray, now: tuple[np.ndarray, np.ndarray]) -> Option | None:
        options, slowest, _, squares, _ = self.tried(table, without)
        at = _best(slowest, squares)
        return options[at] if _better((slowest[at], squares[at]), _pair_of(now)) else None

    def _worth_moving(self, current: list[Option], total: np.ndarray) -> Sequence[int]:
        """All tables where they are few, else those with the most load on the slowest device."""
        if len(current) * self.world <= SMALL:
            return range(len(current))
        return self._on_slowest(current, total)

    def _on_slowest(self, current: list[Option], total: np.ndarray) -> list[int]:
        """The tables with the most load on the slowest device."""
        slowest = int(cost.seconds(total, self.step).argmax())
        held = [table for table, option in enumerate(current) if slowest in option.devices]
        work = {table: current[table].choice.work / max(1, current[table].choice.count) for table in held}
        return sorted(held, key=lambda table: (-work[table], table))[:TRIED]

    def _pair(self, current: list[Option], total: np.ndarray) -> list[tuple[int, Option]] | None:
        """The best move of two tables at once, where there are few options."""
        sizes = [len(each) if each is not None else PAIRS for each in self.all]
        if len(current) > PAIRED or sum(sizes) ** 2 > 2 * PAIRS:
            return None
        best, found = _pair_of(self.score(total)), None
        for a in range(len(current)):
            for b in range(a + 1, len(current)):
                without = total - self.load(current[a]) - self.load(current[b])
                (first, of_a), (second, of_b) = self._known(a), self._known(b)
                slowest, squares = self.score((without + of_a)[:, None] + of_b[None])
                at = _best(slowest.ravel(), squares.ravel())
                now = slowest.ravel()[at], squares.ravel()[at]
                if _better(now, best):
                    best, found = now, [(a, first[at // len(second)]), (b, second[at % len(second)])]
        return found

    def _exchange(self, current: list[Option], total: np.ndarray) -> list[tuple[int, Option]] | None:
        """A table of the slowest device and another one, taken away and placed anew one after the other."""
        if len(current) * self.world > SMALL:
            return None
        now = self.score(total)
        for a in self._on_slowest(current, total):
            for b in range(len(current)):
                without = total - self.load(current[a]) - self.load(current[b])
                if a == b:
                    continue
                first = self._best_place(a, without)
                second = self._best_place(b, self._with(first, without))
                if _better(_pair_of(self.score(self._with(second, self._with(first, without)))), _pair_of(now)):
                    return [(a, first), (b, second)]
        return None

    def _best_place(self, table: int, without: np.ndarray) -> Option:
        options, slowest, _, squares, _ = self.tried(table, without)
        return options[_best(slowest, squares)]

    def _known(self, table: int) -> tuple[list[Option], np.ndarray]:
        options, loads = self.all[table], self.loads[table]
        assert options is not None, "pairs are tried where all options are known"
        assert loads is not None, "as are their loads"
        return options, loads


def _sets(choice: Choice, world: int) -> int:
    return 1 if choice.fixed is not None else comb(world, choice.count)


def _pair_of(score: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    return float(score[0]), float(score[1])


def _best(first: np.ndarray, second: np.ndarray) -> int:
    """The least by `first`, then by `second`, then the earliest."""
    near = first <= first.min() * (1 + 1e-9)
    return int(np.where(near, second, inf).argmin())


def _better(new: tuple[float, float], old: tuple[float, float]) -> bool:
    """By enough that rounding cannot be the reason."""
    if new[0] < old[0] * (1 - 1e-9):
        return True
    return new[0] <= old[0] * (1 + 1e-12) and new[1] < old[1] * (1 - 1e-6)
