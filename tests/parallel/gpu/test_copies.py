"""Gradients of copied tables, added up in the order of the ranks: each row has one occurrence that has them all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridrec.parallel.gpu.copies import Copies
from hybridrec.types.id_block import NO_ID

WIDTHS = np.array([2, 2, 3])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("before", [0, 4])
def test_the_first_occurrence_of_a_row_takes_the_gradients_of_all_ranks(seed: int, before: int) -> None:
    draw = np.random.default_rng(seed)
    world, values, numbers, begins, firsts, counts = 3, [], [], [], [], []
    expected: dict[tuple[int, int], torch.Tensor] = {}
    for _ in range(world):  # of each rank some other ids, then its copied ones
        values += [torch.full((before,), 77)]
        numbers += [torch.full((before * 5,), 99.0)]
        begins.append(sum(map(len, values)))
        firsts.append(sum(map(len, numbers)))
        mine = [np.sort(draw.choice(6, draw.integers(0, 6), replace=False)) for _ in WIDTHS]
        counts.append([len(ids) for ids in mine])
        for unit, (ids, width) in enumerate(zip(mine, WIDTHS.tolist(), strict=True)):
            grads = torch.from_numpy(draw.integers(-8, 9, (len(ids), width))).float()
            values.append(torch.from_numpy(ids).long())
            numbers.append(grads.flatten())
            for id, grad in zip(ids.tolist(), grads, strict=True):
                expected[unit, id] = expected.get((unit, id), torch.zeros(width)) + grad
    ids, grads = torch.cat(values), torch.cat(numbers)
    copies = Copies(ids, np.array(counts), np.array(begins), np.array(firsts), WIDTHS)
    alone = copies.without_others(ids)
    copies.fold(grads)
    found: dict[tuple[int, int], torch.Tensor] = {}
    for begin, first, of_units in zip(begins, firsts, counts, strict=True):
        assert bool((alone[begin - before : begin] == 77).all())
        assert bool((grads[first - 5 * before : first] == 99.0).all())
        at, place = begin, first
        for unit, (count, width) in enumerate(zip(of_units, WIDTHS.tolist(), strict=True)):
            for id in alone[at : at + count].tolist():
                if id != NO_ID:
                    assert (unit, id) not in found, "a row has one occurrence"
                    found[unit, id] = grads[place : place + width]
                place += width
            at += count
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[row], expected[row]) for row in expected)
