"""Of tables that do not fit its card a Trainer has hot rows there, the rest on the host: when it chooses which.

It is chosen when the row optimizer is known, since its state lies beside the rows, and before rows have memory; where
tables fill a card, when a first batch is known, since a step needs room beside them.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import nn

from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.embedding.gpu import caches, memory
from hybridrec.train.first_batch import comes_again, first_batch
from hybridrec.train.optimizers import RowChoice
from hybridrec.train.row_rules import collections_of, row_rules
from hybridrec.train.step_memory import StepMemory, step_memory
from hybridrec.train.tiers import Held, chosen, growing_on, held_on, needed_by
from hybridrec.types import Batch

log = logging.getLogger("hybridrec.train")

NAMED = 8  # tables in the message, the largest
ALWAYS = 0.5  # of what is free on a card can be had for tables, whatever batches come


class Left(NamedTuple):
    """What is free on a card, what of it a step takes, where that is known, and whether tables make room for it.

    `growing` is what dynamic tables may come to.
    """

    free: int
    step: StepMemory | None
    growing: int = 0
    beside: bool = True

    @property
    def room(self) -> int:
        """What tables may take."""
        share = int((1 - caches.MARGIN) * self.free)
        return max(0, min(share, self.free - self.step.total)) if self.step is not None and self.beside else share

    @property
    def kept(self) -> int:
        """What of that is for rows of dynamic tables, which come later: half at the most, since few are ever full."""
        return min(self.growing, self.room // 2)

    def __str__(self) -> str:
        """
        >>> print(Left(10**9, None, growing=10**6))
        10% of that is left to steps, whose batches are not known yet; 1,000,000 to rows of dynamic tables
        """
        return self._of_steps() + (f"; {self.kept:,} to rows of dynamic tables" if self.kept else "")

    def _of_steps(self) -> str:
        share = f"{caches.MARGIN:.0%} of that is left to steps"
        if self.step is None:
            return f"{share}, whose batches are not known yet"
        if not self.beside:
            return f"{share}, which may be too little, smaller batches need less: {self.step}"
        if self.step.total > caches.MARGIN * self.free:
            return f"left to steps are {self.step}"
        return f"{share}, no less than {self.step}"


class CacheChoice:
    """Which tables of a model get a cache on their card: chosen before batches are known, and again when they are.

    It can change as long as rows have no memory, and is told when they get it. Where no choice fits, what gives rows
    their memory says what the card lacks. The host is asked here.
    """

    def __init__(self, model: nn.Module, rows: RowChoice) -> None:
        self._model, self._rows = model, rows
        self._given: list[tuple[EmbeddingCollection, str]] = []
        self._said: list[str] = []

    def make(self, first: Batch | None = None, accumulate: int = 1) -> None:
        """Choose anew: beside steps on batches like the first one, or beside a share of the card."""
        if any(part.allocated for part, _ in self._given):
            return
        self._take_back()
        for card in self._cards():
            step = None if first is None else step_memory(self._model, first, card, accumulate)
            self._choose(card, Left(_free(card), step, growing_on(self._model, card)))

    def _choose(self, card: torch.device, left: Left) -> None:
        """Give caches to tables of a card so that this is left; where no choice leaves a step its room, a share is.

        Dynamic tables alone are no reason for a cache: they may stay far below what they can hold.
        """
        held = held_on(self._model, card, {})
        if needed_by(held) > left.room:  # with the most that a rule keeps: now it matters what this one does
            held = held_on(self._model, card, row_rules(self._model, self._rows))
        if needed_by(held) <= left.room:
            return
        room = left.room - left.kept
        after = chosen(held, room)
        if needed_by(after) > room and left.kept:
            self._choose(card, left._replace(growing=0))
        elif needed_by(after) > room and left.step is not None and left.beside:
            self._choose(card, left._replace(beside=False))
        else:
            self._give(held, after, card, left)

    @property
    def waits(self) -> bool:
        """Whether batches matter: rows have no memory yet, and may take more of a card than they can always have."""
        return any(needed_by(held_on(self._model, card, {})) > ALWAYS * _free(card) for card in self._cards())

    def tell(self) -> None:
        """Say what was chosen to everybody who reads."""
        for said in self._said:
            log.warning(said)
        self._said = []

    def _cards(self) -> list[torch.device]:
        """Those whose rows have no memory yet."""
        parts = [part for _, part in collections_of(self._model)]
        return list(dict.fromkeys(p.device for p in parts if p.device.type == "cuda" and not p.allocated))

    def _take_back(self) -> None:
        for part, name in self._given:
            part.give_caches({name: None})
        self._given, self._said = [], []

    def _give(self, before: list[Held], after: list[Held], card: torch.device, left: Left) -> None:
        """Tell collections what was chosen, if their host can hold the rest."""
        new = [each for each in after if each not in before]
        if not new:
            return
        memory.refuse_cold("the cold rows with their state", memory.added((e.table.name, e.cold_bytes) for e in after))
        for each in new:
            each.collection.give_caches({each.table.name: each.table.cached(each.table.fixed_rows)})
            self._given.append((each.collection, each.table.name))
        self._said.append(_said([each.table for each in new], card, needed_by(before), left))


def give_caches(model: nn.Module, rows: RowChoice) -> None:
    """Give a cache to tables that do not fit the card of a model which is not trained, and say so."""
    choice = CacheChoice(model, rows)
    choice.make()
    choice.tell()


def first_of(data: Any) -> Batch | None:
    """A first batch of some data, which stays where it is; None where there is none, or batches may come only once."""
    first = first_batch(data) if comes_again(data) else None
    return first if isinstance(first, Batch) else None


def _free(card: torch.device) -> int:
    free = memory.free_bytes(card)
    assert free is not None, "it is a card"
    return free


def _said(tables: list[Table], card: torch.device, needed: int, left: Left) -> str:
    largest = sorted(tables, key=lambda table: -table.fixed_rows)
    named = [f"{table.name} {table.cached(table.fixed_rows):,} of {table.fixed_rows:,}" for table in largest[:NAMED]]
    named += [f"{len(tables) - NAMED} more"] if len(tables) > NAMED else []
    return (
        f"tables and the state of their optimizer need {needed:,} bytes on {card}, where {left.free:,} are free; "
        f"{left}. So only hot rows of {len(tables)} table{'s' * (len(tables) > 1)} are there, the others on the host "
        f"({', '.join(named)}). cache= of a table sets how many are hot, where='device' keeps it whole; on the command "
        "line, model.tables='{\"NAME\"={cache=0.2}}'"
    )
