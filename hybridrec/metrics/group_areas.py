"""Entries sorted and merged by group, and the ROC area of every group at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hybridrec.metrics.entries import Entries


class GroupAreas(NamedTuple):
    """Per group [k], float64: the weights of both classes, and the pairs in right order, ties as one half."""

    negatives: Tensor
    positives: Tensor
    right: Tensor


def in_order(entries: Entries) -> Entries:
    """Entries sorted by group, then by key."""
    assert entries.groups is not None
    groups, group = entries.groups.unique(return_inverse=True)
    place, order = group.bitwise_left_shift_(32).bitwise_or_(entries.keys).sort()
    weights = None if entries.weights is None else entries.weights[order]
    return Entries((place & 0xFFFFFFFF).int(), weights, groups[place >> 32])


def merged(entries: Entries) -> Entries:
    """Equal neighbours as one with the sum of weights; none of weight zero. Entries come in order of their scores.

    Within a score labels may come in any order, as they do once scores are binned.
    """
    groups, scores = entries.groups, entries.keys >> 1
    assert groups is not None
    starts, run = _runs((groups[1:] != groups[:-1]) | (scores[1:] != scores[:-1]), len(entries))
    cells = torch.zeros(2 * len(starts), dtype=torch.float64, device=scores.device)  # [run, label]
    cells.scatter_add_(0, run.mul_(2).add_(entries.keys & 1), entries.mass)
    kept = cells.nonzero().flatten()
    if entries.weights is None and len(kept) == len(entries):
        return entries
    first = starts[kept >> 1]
    return Entries((scores[first] << 1 | (kept & 1)).int(), cells[kept], groups[first])


def group_areas(entries: Entries) -> GroupAreas:
    """The areas of groups, of entries in order and merged, on the CPU."""
    groups, keys, mass = entries.groups, entries.keys, entries.mass
    assert groups is not None
    starts, group = _runs(groups[1:] != groups[:-1], len(entries))
    positive = torch.where(keys & 1 == 1, mass, 0.0)
    negative = mass - positive
    below = negative.cumsum(0)
    below -= (below - negative)[starts][group]  # what lies before the group
    # Where a score has both labels, the negatives stand right before the positives, and count one half.
    tied = (keys[1:] == keys[:-1] + 1) & (keys[1:] & 1 == 1) & (group[1:] == group[:-1])
    below[1:] -= torch.where(tied, negative[:-1], 0.0) / 2
    sums = torch.zeros(3, len(starts), dtype=torch.float64)
    return GroupAreas(*sums.index_add_(1, group, torch.stack([negative, positive, positive * below])))


def _runs(changes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where runs of equal neighbours start, and the run of each place, from the changes [size - 1] between them."""
    new = torch.ones(size, dtype=torch.bool, device=changes.device)
    new[1:] = changes
    return new.nonzero().flatten(), new.cumsum(0).sub_(1)
