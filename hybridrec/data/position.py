"""How far an epoch has come, the same value on all ranks, and the rows that it leaves to any other world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any, Literal

import numpy as np

from hybridrec.data.partition import Span, count, merge, share, shares, take
from hybridrec.data.shuffle import Borders, Shuffle, Window, skip, windows

VERSION = 1


@dataclass(frozen=True)
class Era:
    """A stretch of an epoch in one world: its ranks, rows per batch, steps done, and how rows are shared.

    By ``"rows"`` each rank reads ``batch_size`` rows of its own share per step; by ``"batch"`` the ranks
    split global batches of ``batch_size`` rows. Ranks make the same steps (some on empty batches), so four
    values place every one.

    >>> Era(world=4, batch_size=1024, steps=10)
    Era(world=4, batch_size=1024, steps=10, by='rows')
    """

    world: int
    batch_size: int
    steps: int = 0
    by: Literal["rows", "batch"] = "rows"

    def __post_init__(self) -> None:
        _check_integer("world", self.world, 1)
        _check_integer("batch_size", self.batch_size, 1)
        _check_integer("steps", self.steps, 0)
        if self.by not in ("rows", "batch"):
            raise ValueError(f"by={self.by!r}: rows are shared by 'rows' or by 'batch'")

    @property
    def whole(self) -> bool:
        """Whether the era walks the one global order, which is then the same for any world."""
        return self.by == "batch" or self.world == 1


@dataclass(frozen=True)
class Position:
    """The loader's place: the epoch and its eras, the last of which is going on.

    A few integers whatever the size of the data, and nothing of one rank: what is left is computed from them,
    at the price of planning the earlier eras again when an epoch is resumed.

    >>> Position(epoch=0, eras=(Era(4, 1024, 10),)).resume(world=2, batch_size=1024).advance().eras
    (Era(world=4, batch_size=1024, steps=10, by='rows'), Era(world=2, batch_size=1024, steps=1, by='rows'))
    """

    epoch: int
    eras: tuple[Era, ...]

    def __post_init__(self) -> None:
        _check_integer("epoch", self.epoch, 0)
        if not self.eras:
            raise ValueError("a position has at least one era: Position(epoch, (Era(world, batch_size),))")

    def advance(self, steps: int = 1) -> Position:
        """The position ``steps`` steps on."""
        now = self.eras[-1]
        return replace(self, eras=(*self.eras[:-1], replace(now, steps=now.steps + steps)))

    def next_epoch(self) -> Position:
        """The start of the next epoch in the present world."""
        return Position(self.epoch + 1, (replace(self.eras[-1], steps=0),))

    def resume(self, world: int, batch_size: int, by: Literal["rows", "batch"] = "rows") -> Position:
        """This place for a world that goes on from here: a new era, unless the present one serves."""
        earlier, now, new = self.eras[:-1], self.eras[-1], Era(world, batch_size, 0, by)
        if replace(now, steps=0) == new:
            return self
        if now.steps == 0:
            return (
                replace(self, eras=earlier).resume(world, batch_size, by) if earlier else Position(self.epoch, (new,))
            )
        if now.whole and new.whole and now.batch_size == batch_size:
            return replace(self, eras=(*earlier, replace(new, steps=now.steps)))
        return replace(self, eras=(*self.eras, new))

    def to_json(self) -> dict[str, Any]:
        """The position as plain JSON values, with the version of their format."""
        return {"version": VERSION, "epoch": self.epoch, "eras": [asdict(era) for era in self.eras]}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Position:
        """The position that to_json() wrote; other versions and keys are refused, never guessed at.

        >>> here = Position(2, (Era(1, 8, 3),))
        >>> Position.from_json(here.to_json()) == here
        True
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a loader position is a mapping as made by to_json(), not {type(state).__name__}")
        version = state.get("version")
        if isinstance(version, int) and version > VERSION:
            raise ValueError(
                f"position format {version} is newer than {VERSION}, the newest known here: upgrade hybridrec"
            )
        if version != VERSION:
            raise ValueError(f"position format {version!r} is unknown: this hybridrec reads format {VERSION}")
        _check_keys("a loader position", state, ["version", "epoch", "eras"])
        if not isinstance(state["eras"], list | tuple):
            raise TypeError(f"eras of a loader position are a list, not {type(state['eras']).__name__}")
        for era in state["eras"]:
            if not isinstance(era, Mapping):
                raise TypeError(f"an era of a loader position is a mapping, not {type(era).__name__}")
            _check_keys("an era of a loader position", era, [field.name for field in fields(Era)])
        return cls(state["epoch"], tuple(Era(**era) for era in state["eras"]))


@dataclass(frozen=True)
class Walk:
    """What one rank reads now: ``skip(windows(spans, borders, shuffle, epoch, rank, era), skip)``.

    Where the order is the global one (by batch), every rank gets all spans as rank 0 and cuts its slice from
    each batch. ``rows`` is what the present era began with, over all ranks: ``steps(rows, ...)`` is then its
    length in steps.
    """

    spans: list[Span]
    rank: int
    era: int
    skip: int
    rows: int


def walk(spans: Sequence[Span], borders: Borders, shuffle: Shuffle | None, position: Position, rank: int) -> Walk:
    """Where ``rank`` stands in the last era of ``position``, and what it reads from there.

    Eras that walk the global order one after another (by batch, or one rank) are one walk: another number of
    ranks or another batch size goes on in the same order, so a run resumed by batch sees the very batches of
    one rank.

    >>> here = Position(0, (Era(2, batch_size=10, steps=3),))
    >>> walk([Span(0, 0, 100)], lambda group: np.array([0, 100]), None, here, rank=1)
    Walk(spans=[Span(group=0, start=50, stop=100, rows=50)], rank=1, era=0, skip=30, rows=100)
    """
    now = position.eras[-1]
    if not 0 <= rank < now.world:
        raise ValueError(f"rank={rank}: ranks of a world of {now.world} are 0 to {now.world - 1}")
    first = next(reversed(_runs(position.eras)))
    run = position.eras[first:]
    left = remaining(spans, borders, shuffle, position.epoch, position.eras[:first])
    if not now.whole:
        return Walk(share(left, rank, now.world), rank, first, now.steps * now.batch_size, count(left))
    before = sum(era.steps * era.batch_size for era in run[:-1])
    return Walk(left, 0, first, before + now.steps * now.batch_size, max(0, count(left) - before))


def remaining(
    spans: Sequence[Span], borders: Borders, shuffle: Shuffle | None, epoch: int, eras: Sequence[Era]
) -> list[Span]:
    """The rows that none of the ranks of any of these eras has read, in the order of the spans.

    The windows of every rank are planned again (no data is read): those done are dropped, those untouched
    stay plain ranges and are joined to whole groups again, and only the one that a rank stood in is marked
    row by row.

    >>> remaining([Span(0, 0, 10)], lambda group: np.array([0, 10]), None, 0, [Era(2, batch_size=2, steps=1)])
    [Span(group=0, start=2, stop=5, rows=3), Span(group=0, start=7, stop=10, rows=3)]
    """
    left = [span for span in spans if span.rows]
    for first, run in _runs(eras).items():
        read = sum(era.steps * era.batch_size for era in run)
        if read == 0:
            continue
        parts = [left] if run[0].whole else shares(left, run[0].world)
        if shuffle is None:
            tails = [take(part, read) for part in parts]
            left = merge([span for tail in tails for span in tail])
            continue
        place = {span.group: index for index, span in reversed(list(enumerate(left)))}
        ranked = (windows(part, borders, shuffle, epoch, rank, first) for rank, part in enumerate(parts))
        unread = chain.from_iterable(_unread(window, done) for walk in ranked for window, done in skip(walk, read))
        left = merge(sorted(unread, key=lambda span: (place[span.group], span.start)))
    return left


def _runs(eras: Sequence[Era]) -> dict[int, list[Era]]:
    """The eras as walks, by the number of their first era: in the global order one goes on from another."""
    runs: dict[int, list[Era]] = {}
    first = 0
    for number, era in enumerate(eras):
        if number == 0 or not (era.whole and eras[number - 1].whole):
            first = number
        runs.setdefault(first, []).append(era)
    return runs


def _unread(window: Window, done: int) -> Iterator[Span]:
    """The spans of a window less its first ``done`` rows in reading order."""
    if done == 0:
        yield from window.spans
        return
    left = np.zeros(window.rows, bool)
    left[window.order()[done:]] = True
    start = 0
    for span in window.spans:
        mask = np.zeros(span.stop - span.start, bool)
        mask[span.indices() - span.start] = left[start : start + span.rows]
        yield Span.of_mask(span.group, mask, span.start)
        start += span.rows


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: an integer is needed, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={value}: must be at least {least}")


def _check_keys(what: str, found: Mapping[str, Any], names: list[str]) -> None:
    unknown, missing = sorted(set(found) - set(names)), sorted(set(names) - set(found))
    if unknown or missing:
        raise ValueError(f"{what} has the keys {', '.join(names)}; unknown here: {unknown}, missing: {missing}")
