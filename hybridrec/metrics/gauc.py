"""AUC within groups, averaged over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from hybridrec.metrics.entries import Entries, EntryLog, entries_from, entries_of, key_of
from hybridrec.metrics.group_areas import group_areas, in_order, merged
from hybridrec.metrics.group_hash import picked
from hybridrec.metrics.metric import Metric
from hybridrec.metrics.rows import Rows
from hybridrec.metrics.score_bins import score_bin

_LAST_STAGE = 60  # of 2**59 groups one is left


@dataclass(frozen=True)
class GroupSummary:
    """A GAUC and what it is made of."""

    value: float
    groups: int  # that have both classes
    one_class: int  # groups left out, as they have one class alone
    share: float  # of all groups that were looked at: 1, or a power of one half
    binned: bool  # whether scores were put in bins


class GAUC(Metric):
    """The mean over groups of their AUC, weighted by their rows (impressions; the sum of weights where given).

    As in "Deep interest network" (Zhou and others, 2018). Groups may span updates. Groups of one class have no AUC
    and are left out; `summary()` counts them. Up to `entries` rows the result is exact. Beyond, the first of these
    that suffices brings the rows down to `entries`: equal ones become one; scores become the bins of `AUC`; half of
    the groups are dropped by a hash of the group, and half again. The same rows give the same result, whatever
    their order. At most twice `entries` are held, at 12 bytes each, or 20 with weights or merged rows.

    >>> gauc = GAUC("user")
    >>> users = torch.tensor([1, 1, 2, 2, 3])
    >>> gauc.update(torch.tensor([0.1, 0.4, 0.8, 0.7, 0.5]), torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]), groups=users)
    >>> gauc.summary()
    GroupSummary(value=0.5, groups=2, one_class=1, share=1.0, binned=False)
    """

    def __init__(self, column: str | None = None, entries: int = 1 << 22) -> None:
        if entries < 1:
            raise ValueError(f"entries is {entries}: it must be 1 or more, the default is {1 << 22:,}")
        super().__init__()
        self.column = column
        self.name = "gauc" if column is None else f"gauc:{column}"
        self.entries = entries
        self._clear()

    def _clear(self) -> None:
        self._log = EntryLog()
        self._stage = 0  # 0: scores as they are, 1: binned, 2 and on: groups halved once, twice, …
        self._settled = True  # merged, and no more than `entries`

    def add(self, rows: Rows) -> None:
        if len(rows) == 0:
            return
        if rows.groups is None:
            raise ValueError(
                f"{self.name} needs the group of each row; pass groups=, integers {list(rows.scores.shape)}"
            )
        self._append(_lowered(entries_of(rows), 0, self._stage))
        if self._log.size > 2 * self.entries:
            self._settle()

    def value(self) -> float:
        return self._summary().value

    def summary(self) -> GroupSummary:
        """The value, with the groups it is made of and those left out."""
        self._faults.check()
        return self._summary()

    def _summary(self) -> GroupSummary:
        self._settle()
        areas = group_areas(self._log.all().to("cpu"))
        both = (areas.negatives > 0) & (areas.positives > 0)
        negatives, positives, right = (part[both] for part in areas)
        weight = negatives + positives
        value = float((right / (negatives * positives)) @ weight / weight.sum()) if len(weight) else math.nan
        left_out = len(both) - len(weight)
        return GroupSummary(value, len(weight), left_out, 0.5 ** max(self._stage - 1, 0), self._stage > 0)

    def _append(self, entries: Entries) -> None:
        self._log.append(entries)
        self._settled = False

    def _settle(self) -> None:
        """Merge equal entries; while there are too many, go to the next stage."""
        if self._settled:
            return
        entries = merged(in_order(self._log.all()))
        while len(entries) > self.entries:
            if self._stage == _LAST_STAGE:
                raise ValueError(f"one group of {self.name} alone needs {len(entries)} entries; raise entries=")
            entries = merged(_lowered(entries, self._stage, self._stage + 1))
            self._stage += 1
        self._log, self._settled = EntryLog(entries), True

    def _merge(self, other: Self) -> None:
        if self.entries != other.entries:
            raise ValueError(f"cannot merge {self.name} of {other.entries} entries into one of {self.entries}")
        stage = max(self._stage, other._stage)
        parts = [_lowered(metric._log.all(), metric._stage, stage) for metric in (self, other)]
        self._log, self._stage, self._settled = EntryLog(*parts), stage, False
        if self._log.size > 2 * self.entries:
            self._settle()

    def _state(self) -> dict[str, Tensor]:
        return {**self._log.all().state(), "stage": torch.tensor([self._stage, self._settled, self.entries])}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        stage, settled, entries = state["stage"].tolist()
        if entries != self.entries:
            raise ValueError(f"the state of {self.name} is of {entries} entries, this one of {self.entries}")
        self._log = EntryLog(entries_from(state))
        self._stage, self._settled = stage, bool(settled)


def _lowered(entries: Entries, stage: int, to: int) -> Entries:
    """Entries of one stage brought to a later one."""
    if to > max(stage, 1) and entries.groups is not None:
        entries = entries.where(picked(entries.groups, to - 1))
    if stage == 0 < to:
        bins = score_bin((entries.keys >> 1).view(torch.float32))
        entries = Entries(key_of(bins, entries.keys & 1), entries.weights, entries.groups)
    return entries
